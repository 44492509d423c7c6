"""Settings, logging, checkpoints, timing."""
