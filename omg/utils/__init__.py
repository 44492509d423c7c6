"""Settings, logging, checkpoints, interrupts, the machine, shared formulas."""
