"""What to measure next, and the loop that measures it: grid, plan, preflight, run."""
