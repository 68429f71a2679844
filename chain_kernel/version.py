"""The version of what is installed."""


def installed_version() -> str:
    """Return the version of the installed distribution; `unknown` for a checkout without one."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("orderchain")
    except PackageNotFoundError:
        return "unknown"
