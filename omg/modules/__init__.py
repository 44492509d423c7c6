"""Networks: agents, agent models, mixers, critics."""
