"""A session has the settings of the table; what the caller gives wins."""

import sys
from pathlib import Path
from typing import Any

import pytest

from chp_client.spark import session as make_session
from chp_client.spark.java import Java
from chp_client.spark.session import SAID_AGAIN, SETTINGS, all_settings, environment, warm


def test_settings_depend_on_cores() -> None:
    wanted = all_settings(3)
    assert SETTINGS.items() <= wanted.items()
    assert wanted["spark.master"] == "local[3]" and wanted["spark.sql.shuffle.partitions"] == "3"
    assert "-Xss16m" in wanted["spark.driver.extraJavaOptions"]


def test_the_progress_bar_of_spark_is_on_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for seen in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda seen=seen: seen)
        assert all_settings(2)["spark.ui.showConsoleProgress"] == str(seen).lower()


def test_the_environment_keeps_given_variables() -> None:
    java = Java(Path("/j"), 17, "here")
    fresh = environment(java, {})
    assert fresh["JAVA_HOME"] == "/j" and fresh["PYSPARK_PYTHON"] == sys.executable
    assert fresh["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert environment(java, {"SPARK_LOCAL_IP": "10.0.0.1"})["SPARK_LOCAL_IP"] == "10.0.0.1"


def test_zero_cores_are_refused() -> None:
    with pytest.raises(ValueError, match="cores is 0"):
        make_session(cores=0)


@pytest.mark.spark
def test_spark_does_not_log_raised_errors_again(spark: Any) -> None:
    logs = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager
    assert not any(logs.getLogger(name).isErrorEnabled() for name in SAID_AGAIN)
    assert logs.getLogger("org.apache.spark.sql.execution.streaming").isErrorEnabled()


@pytest.mark.spark
def test_a_running_session_is_returned_and_sql_settings_apply(spark: Any) -> None:
    for name, value in all_settings(2).items():
        if name.startswith("spark.sql."):
            assert spark.conf.get(name) == value
    settings: dict[str, Any] = {"spark.sql.shuffle.partitions": 2, "spark.sql.ansi.enabled": True}
    again = make_session(cores=8, **settings)
    assert again.conf.get("spark.sql.ansi.enabled") == "true" and again.sparkContext.master == "local[2]"


@pytest.mark.spark
def test_a_session_is_warmed_up(spark: Any) -> None:
    assert warm(spark, 2)


def test_warming_up_an_ended_session_only_logs_the_error(caplog: pytest.LogCaptureFixture) -> None:
    class Ended:
        def range(self, *_: object, **__: object) -> None:
            raise RuntimeError("the session has ended")

    ended: Any = Ended()
    with caplog.at_level("INFO"):
        assert not warm(ended)
    assert "was not warmed up: the session has ended" in caplog.text
