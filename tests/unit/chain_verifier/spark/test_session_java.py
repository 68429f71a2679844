from pathlib import Path

import pytest

from chain_kernel.errors import SettingError
from chain_verifier.spark.session import MODULE, require_java


def installed(home: Path, release: str | None) -> dict[str, str]:
    """Make a Java in `home`, and return the environment that names it."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    if release is not None:
        (home / "release").write_text(release)
    return {"JAVA_HOME": str(home), "PATH": ""}


def test_java_with_the_right_version_and_modules_is_taken(tmp_path: Path) -> None:
    release = f'JAVA_VERSION="17.0.1"\nMODULES="java.base {MODULE} java.sql"\n'
    assert refusal_of(installed(tmp_path, release)) is None


def test_java_with_no_release_file_is_left_to_spark(tmp_path: Path) -> None:
    assert refusal_of(installed(tmp_path, None)) is None


def refusal_of(environment: dict[str, str]) -> SettingError | None:
    try:
        require_java(environment)
    except SettingError as error:
        return error
    return None


@pytest.mark.parametrize(
    "release",
    [
        'JAVA_VERSION="11.0.20"\n',
        'JAVA_VERSION="1.8.0_392"\n',
        'JAVA_VERSION="21.0.1"\nMODULES="java.base java.sql"\n',
    ],
)
def test_java_that_cannot_run_spark_is_refused_with_what_to_install(
    tmp_path: Path, release: str
) -> None:
    with pytest.raises(SettingError, match="apt-get install default-jre-headless"):
        require_java(installed(tmp_path, release))


def test_java_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for environ in ({"PATH": str(tmp_path)}, {"JAVA_HOME": str(tmp_path), "PATH": ""}):
        with pytest.raises(SettingError, match=r"^java was "):
            require_java(environ)


def test_java_found_by_a_link_on_the_path_is_judged_by_its_own_folder(tmp_path: Path) -> None:
    installed(tmp_path / "jvm", 'JAVA_VERSION="11"\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(tmp_path / "jvm" / "bin" / "java")
    with pytest.raises(SettingError):
        require_java({"PATH": str(tmp_path / "bin")})
