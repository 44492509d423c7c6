"""Building blocks below the networks: layers, episodes and replay, action selection, beliefs, tree search."""
