"""The commands of `chainctl`, by what they are about; `chainctl.main` says which is where."""
