"""Pure arithmetic: workload, ledger, demand, devices, ceilings, roofline, references."""
