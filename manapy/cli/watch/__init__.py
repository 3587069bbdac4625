"""Commands that show what a job does, and what is wrong with it: status, why, trace, history."""
