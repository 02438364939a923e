# SPDX-License-Identifier: Apache-2.0
"""What `holdfast keystone register` decides, and what it refuses before it asks anybody."""

import pytest
from test_client_fake import Run, clean_environment, runner

from holdfast.client.catalog import KINDS, Endpoint, base_address, plan

KIND = KINDS[0]
HERE, THERE = "http://here:8780/reservation/v1", "http://there:8780/reservation/v1"
WANTED = {"public": HERE, "internal": HERE, "admin": HERE}
OURS = {"s1": "holdfast-reservation"}


def endpoint(id_: str, interface: str, url: str = HERE, **more: object) -> Endpoint:
    values = {"service_id": "s1", "service": "holdfast-reservation", **more}
    return Endpoint(id=id_, interface=interface, url=url, **values)  # type: ignore[arg-type]


def three(url: str = HERE, **more: object) -> list[Endpoint]:
    return [endpoint(f"e{n}", name, url, **more) for n, name in enumerate(WANTED)]


def test_an_empty_catalog_gets_a_service_and_three_endpoints() -> None:
    made = plan(KIND, WANTED, {}, [])
    assert made.service_id is None
    assert made.create == WANTED
    assert not (made.change or made.keep or made.rivals)


def test_a_correct_endpoint_stays_unchanged() -> None:
    made = plan(KIND, WANTED, OURS, three())
    assert made.service_id == "s1"
    assert len(made.keep) == 3
    assert not (made.create or made.change or made.rivals)


def test_a_new_address_changes_the_endpoints_and_adds_none() -> None:
    made = plan(KIND, {**WANTED, "admin": THERE}, OURS, three())
    assert [(each.id, url) for each, url in made.change] == [("e2", THERE)]
    assert len(made.keep) == 2
    assert not (made.create or made.rivals)


def test_a_disabled_endpoint_is_enabled_again() -> None:
    made = plan(KIND, WANTED, OURS, three(enabled=False))
    assert [(each.id, url) for each, url in made.change] == [
        ("e0", HERE),
        ("e1", HERE),
        ("e2", HERE),
    ]
    assert not (made.create or made.rivals)


def test_another_services_endpoints_are_rivals_unless_they_are_disabled() -> None:
    services = {**OURS, "s2": "blazar"}
    theirs = {"service_id": "s2", "service": "blazar"}
    blazar = endpoint("b1", "public", "http://here:1234/v1", **theirs)
    made = plan(KIND, WANTED, services, [*three(), blazar])
    assert made.rivals == [blazar]
    assert str(blazar) == "blazar public http://here:1234/v1 (b1)"
    off = endpoint("b1", "public", "http://here:1234/v1", **theirs, enabled=False)
    assert plan(KIND, WANTED, services, [*three(), off]).rivals == []


def test_a_duplicate_of_ours_is_a_rival_and_the_right_one_is_kept() -> None:
    old = endpoint("a0", "public", THERE)
    made = plan(KIND, WANTED, OURS, [old, *three()])
    assert made.rivals == [old]
    assert [each.id for each in made.keep] == ["e0", "e1", "e2"]
    assert not (made.create or made.change)


def test_a_service_with_our_address_is_ours_whatever_it_is_called() -> None:
    named = [endpoint("x", "public", HERE, service_id="s9", service="reservation")]
    made = plan(KIND, WANTED, {"s9": "reservation"}, named)
    assert made.service_id == "s9"
    assert set(made.create) == {"internal", "admin"}
    assert not made.rivals


def test_blazar_is_a_rival_even_at_an_address_that_ends_as_ours() -> None:
    theirs = {"service_id": "s9", "service": "blazar"}
    blazar = endpoint("x", "public", "http://cloud/reservation/v1", **theirs)
    made = plan(KIND, WANTED, {"s9": "blazar"}, [blazar])
    assert made.rivals == [blazar]
    assert made.service_id is None
    assert not (made.change or made.keep)


def test_of_two_services_of_our_name_the_one_in_use_gets_the_endpoints() -> None:
    services = {"s0": "holdfast-reservation", **OURS}
    assert plan(KIND, WANTED, services, three()[:1]).service_id == "s1"
    assert plan(KIND, WANTED, services, []).service_id == "s0"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://cloud.example.org:8780/", "https://cloud.example.org:8780"),
        ("http://[::1]:8780", "http://[::1]:8780"),
        ("https://cloud.example.org/holdfast", "https://cloud.example.org/holdfast"),
    ],
)
def test_the_last_slash_of_an_address_is_removed(text: str, url: str) -> None:
    assert base_address(text) == url


@pytest.mark.parametrize(
    "text", ["", "here:8780", "ftp://here", "http://", "http://here?x=1", HERE, HERE + "/"]
)
def test_an_invalid_server_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address|leave /reservation/v1 away"):
        base_address(text)


@pytest.fixture
def holdfast(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    clean_environment(monkeypatch)
    return runner(monkeypatch, capsys)


@pytest.mark.parametrize(
    "argv",
    [
        "",
        "--public-url here:8780",
        "--url here:8780",
        f"--public-url {HERE}",
        "--public-url http://here --internal-url here",
        "--public-url http://here --service-password-file x",
    ],
)
def test_a_wrong_option_ends_with_2(holdfast: Run, argv: str) -> None:
    assert holdfast("keystone", "register", *argv.split()).code == 2


def test_no_credentials_a_bad_password_file_and_a_lost_keystone_are_one_line_each(
    holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = ("keystone", "register", "--url", "http://here:8780")
    ran = holdfast(*register)
    assert ran.code == 1
    assert ran.err.startswith("there are no credentials for Keystone: set the OS_* variables")
    for name in ("USERNAME", "PASSWORD", "PROJECT_NAME", "USER_DOMAIN_NAME", "PROJECT_DOMAIN_NAME"):
        monkeypatch.setenv(f"OS_{name}", "x")
    monkeypatch.setenv("OS_AUTH_URL", "http://127.0.0.1:1/v3")
    ran = holdfast(*register)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "cannot reach Keystone: Unable to establish connection to"
        " http://127.0.0.1:1/v3/auth/tokens: is it running? check OS_AUTH_URL\n"
    )
    ran = holdfast(*register, "--service-user", "x", "--service-password-file", "/nope")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("cannot read the password file /nope")
    ran = holdfast(*register, "--os-cloud", "nowhere")
    assert ran.code == 1
    assert ran.err.startswith("cloud nowhere of clouds.yaml cannot be used: ")
    assert ran.err.count("\n") == 1


def test_the_help_teaches_by_example(holdfast: Run) -> None:
    ran = holdfast("keystone", "register", "--help")
    assert ran.code == 0
    assert "\nexample:\n  holdfast keystone register --public-url https://" in ran.out
