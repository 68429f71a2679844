"""Repair of a stored chain: only rows whose seal fits are written back."""
