"""One module per command of `chainctl`."""
