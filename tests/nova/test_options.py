# SPDX-License-Identifier: Apache-2.0
"""[holdfast] in nova.conf: defaults, lines of BlazarFilter, reading again."""

from pathlib import Path

from oslo_config import cfg

from holdfast.nova import options
from holdfast.nova.admission import Options


def read(path: Path, text: str) -> tuple[cfg.ConfigOpts, Options]:
    path.write_text(text)
    conf = cfg.ConfigOpts()
    options.register(conf)
    options.register(conf)  # another filter's import, a reload: again is harmless
    conf([], project="nova", default_config_files=[str(path)])
    return conf, options.read(conf)


def test_the_option_defaults_equal_the_admission_defaults(tmp_path: Path) -> None:
    assert read(tmp_path / "nova.conf", "")[1] == Options()


def test_every_option_is_read(tmp_path: Path) -> None:
    text = """[holdfast]
freepool = idle
allow_preemptibles = yes
preemptible_pool = spot
preemptible_extra_spec = x:spot
"""
    assert read(tmp_path / "nova.conf", text)[1] == Options("idle", True, "spot", "x:spot")


def test_lines_written_for_blazar_still_count(tmp_path: Path) -> None:
    text = """[blazar:physical:host]
aggregate_freepool_name = idle
allow_preemptibles = true
preemptible_aggregate = spot
"""
    got = read(tmp_path / "nova.conf", text)[1]
    assert got == Options(freepool="idle", allow_preemptibles=True, preemptible_pool="spot")


def test_a_reload_changes_the_options(tmp_path: Path) -> None:
    path = tmp_path / "nova.conf"
    conf, before = read(path, "[holdfast]\n")
    path.write_text("[holdfast]\nallow_preemptibles = true\n")
    conf.mutate_config_files()
    assert (before.allow_preemptibles, options.read(conf).allow_preemptibles) == (False, True)


def test_the_sample_shows_help_for_every_option() -> None:
    assert all(opt.help for _group, opts in options.list_opts() for opt in opts)
