"""How to verify a kernel."""
