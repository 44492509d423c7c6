"""Measuring what was learned: numbers, figures, pictures of episodes."""
