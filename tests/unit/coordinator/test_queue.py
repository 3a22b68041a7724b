"""The queue's broker: a folder of the home by default, a usage error if there is no such thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator import queue
from coordinator.settings import resolve_coordinator
from lockstep.protocol.errors import UsageError


def test_by_default_the_broker_is_a_folder_of_the_home(tmp_path: Path) -> None:
    app = queue.build(resolve_coordinator(home=str(tmp_path)))
    assert app.conf.broker_url == "folder://"
    assert app.conf.task_always_eager is False
    folders = {Path(app.conf.broker_transport_options[k]) for k in ("data_folder_in", "data_folder_out")}
    assert folders == {tmp_path / "queue"}


def test_a_broker_that_is_none_is_a_usage_error_and_its_password_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'nonsense'") as refused:
        queue.build(resolve_coordinator(home=str(tmp_path), broker="nonsense://user:hush@host"))
    assert refused.value.hint
    assert "hush" not in refused.value.message + refused.value.hint
    assert list(tmp_path.iterdir()) == []
