"""Finds slow iterations, and ranks and links that make a job slower."""
