"""Evaluation: results with partners, adaptation, statistics, figures, replays."""
