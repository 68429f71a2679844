"""`verify --follow`: the checks on a topic as it grows."""
