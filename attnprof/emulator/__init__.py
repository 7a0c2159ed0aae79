"""PTX on NumPy lanes: the executor that needs no GPU."""
