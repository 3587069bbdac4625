"""Commands that check and measure this machine: doctor, bench."""
