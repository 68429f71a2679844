"""The sending end: adding messages, and the relay that sends them."""
