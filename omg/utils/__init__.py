"""Settings, files, checkpoints, logging, interrupts, plugins, team names, the machine."""
