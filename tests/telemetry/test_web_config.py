"""The web-config file, against what the exporter toolkit's page says of it, and hashes made by bcrypt itself."""

import base64
import os
import shutil
import ssl
from pathlib import Path

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.errors import UsageError
from cadenza.telemetry import web_config
from cadenza.telemetry.web_config import BasicAuth, ConfigWatch, HttpServerConfig, TlsServerConfig, WebConfig, load
from cadenza.telemetry.web_config import make_context as make_tls

TLS = Path(__file__).parents[1] / "data" / "tls"
PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()


def basic(user: str, password: str, scheme: str = "Basic") -> str:
    return f"{scheme} {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "web.yml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_a_whole_file(tmp_path: Path) -> None:
    text = f"""
tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_ca_file: ca.crt
  client_auth_type: RequireAndVerifyClientCert
  min_version: TLS13
http_server_config:
  http2: true
  headers:
    Strict-Transport-Security: max-age=31536000
basic_auth_users:
  prometheus: {HASH}
"""
    assert load(write(tmp_path, text)) == WebConfig(
        TlsServerConfig("server.crt", "server.key", "ca.crt", "RequireAndVerifyClientCert", "TLS13"),
        HttpServerConfig(http2=True, headers={"Strict-Transport-Security": "max-age=31536000"}),
        {"prometheus": HASH},
    )


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "{}"])
def test_an_empty_file_asks_for_nothing(tmp_path: Path, text: str) -> None:
    assert load(write(tmp_path, text)) == WebConfig()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tls_server_config: {cert_file: a}", "key_file"),
        ("tls_server_config: {cert_file: a, key_file: b, cipher_suites: [x]}", "cipher_suites"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: SSL3}", "min_version"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAnyClientCert}", "client_auth_type"),
        ("basic_auth: {}", "basic_auth"),
        ("http_server_config: {headers: {X-Other: a}}", "X-Other"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\r\\nSet-Cookie: x"}}', "X-Frame-Options"),
        ("basic_auth_users: {bob: hunter2}", "bob"),
        (f'basic_auth_users: {{"b:ob": "{HASH}"}}', "b:ob"),
        ("basic_auth_users: {bob: 12}", "basic_auth_users"),
        ("basic_auth_users: {bob: " + HASH.replace("$04$", "$31$") + "}", "cost 4 to 17"),
        (f"basic_auth_users: {{{HASH}: bob}}", "the user '(a hash)'"),  # the wrong way round
        (f"{HASH}: bob", "(a hash)"),
        (f"http_server_config: {{headers: {{{HASH}: a}}}}", "(a hash)"),
        ('basic_auth_users: {"a\\nb\\e[1m": x}', "the user 'a b [1m'"),
        ("- a", "array"),
        ("a: [", "no YAML"),
        (b"\xff\xfe\x00", "no YAML"),
        ("[" * 5000, "no YAML"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, text: str | bytes, named: str) -> None:
    with pytest.raises(UsageError) as error:
        load(write(tmp_path, text))
    assert named in str(error.value)
    assert "hunter2" not in str(error.value)
    assert HASH[7:] not in str(error.value)
    assert str(error.value).isprintable()


def test_broken_yaml_tells_its_line_and_nothing_of_its_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        load(write(tmp_path, f"basic_auth_users:\n  bob: {HASH}\n bad\n"))
    assert "line" in str(error.value)
    assert HASH not in str(error.value)


def test_passwords_without_the_extra_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"cadenza\[auth\]"):
        load(write(tmp_path, f"basic_auth_users: {{bob: {HASH}}}"))
    assert load(write(tmp_path, "")) == WebConfig()


def test_a_file_that_cannot_be_read_or_is_no_config_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "none")
    with pytest.raises(UsageError, match="larger than"):
        load(write(tmp_path, b"#" * (1 << 20)))


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(junk: bytes) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    file = folder / f"cadenza-web-config-{os.getpid()}.yml"
    file.write_bytes(junk)
    try:
        config = load(file)
    except UsageError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert isinstance(config, WebConfig)
    finally:
        file.unlink()


def test_who_may_come_in() -> None:
    auth = BasicAuth({"prometheus": HASH})
    for _ in range(2):
        assert auth.allows(basic("prometheus", PASSWORD))
        assert auth.allows(basic("prometheus", PASSWORD, "bASIC"))
        assert not auth.allows(basic("prometheus", PASSWORD + "x"))
        assert not auth.allows(basic("prometheus", ""))
        assert not auth.allows(basic("bob", PASSWORD))
        assert not auth.allows(basic("", PASSWORD))


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "Basic", "Basic ", "Basic !!!", "Basic YQ", "Bearer x", "Basic " + "A" * 10_000),
        f"Basic {base64.b64encode(b'prometheus').decode()}",
        basic("prometheus", PASSWORD).replace("Basic ", "Basic\t"),
        "Basic é",
        basic("prometheus", PASSWORD + "\0"),
    ],
)
def test_what_is_no_credential_stays_out(header: str | None) -> None:
    assert not BasicAuth({"prometheus": HASH}).allows(header)


def test_without_users_everybody_may() -> None:
    assert BasicAuth({}).allows(None)


def test_bcrypt_sees_72_bytes_and_so_do_we() -> None:
    hashed = bcrypt.hashpw(b"a" * 72, bcrypt.gensalt(4)).decode()
    auth = BasicAuth({"u": hashed})
    assert auth.allows(basic("u", "a" * 80))
    assert not auth.allows(basic("u", "a" * 71))


def test_user_and_password_cannot_be_cut_elsewhere() -> None:
    auth = BasicAuth({"ab": HASH})
    assert auth.allows(basic("ab", PASSWORD))
    assert not auth.allows(basic("a", "b" + PASSWORD))
    assert not auth.allows(basic("a", f"b:{PASSWORD}"))


def test_answers_are_remembered_and_guessing_pushes_no_right_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    check = bcrypt.checkpw

    def count(password: bytes, hashed: bytes) -> bool:
        calls.append(password)
        return check(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", count)
    auth = BasicAuth({"u": HASH})
    assert auth.allows(basic("u", PASSWORD))
    for guess in range(200):
        assert not auth.allows(basic("u", str(guess)))
    assert len(calls) == 201
    assert auth.allows(basic("u", PASSWORD))
    assert not auth.allows(basic("u", "199"))
    assert len(calls) == 201
    assert len(auth._wrong) <= 64
    assert all(PASSWORD.encode() not in digest for digest in auth._right)


def test_a_stranger_costs_a_check_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def agree(password: bytes, hashed: bytes) -> bool:
        seen.append(hashed)
        return True

    monkeypatch.setattr(bcrypt, "checkpw", agree)
    assert not BasicAuth({"u": HASH}).allows(basic("stranger", PASSWORD))
    assert seen == [HASH.encode()]


def test_tls_as_the_file_says() -> None:
    context = make_tls(TlsServerConfig("cert.pem", "key.pem"), TLS)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE
    strict = make_tls(TlsServerConfig("cert.pem", "key.pem", client_ca_file="cert.pem", min_version="TLS13"), TLS)
    assert strict.minimum_version == ssl.TLSVersion.TLSv1_3
    assert strict.verify_mode == ssl.CERT_REQUIRED
    mild = TlsServerConfig("cert.pem", "key.pem", "cert.pem", "VerifyClientCertIfGiven")
    assert make_tls(mild, TLS).verify_mode == ssl.CERT_OPTIONAL


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (TlsServerConfig("none.pem", "key.pem"), "none.pem"),
        (TlsServerConfig("README.md", "key.pem"), "README.md"),
        (TlsServerConfig("cert.pem", "key.pem", "none.pem"), "none.pem"),
        (TlsServerConfig("cert.pem", "key.pem", "README.md"), "README.md"),
        (TlsServerConfig("cert.pem", "key.pem", None, "RequireAndVerifyClientCert"), "client_ca_file"),
        (TlsServerConfig("cert.pem", "key.pem", "cert.pem", "NoClientCert"), "NoClientCert"),
        (TlsServerConfig("cert.pem", "key.pem", min_version="TLS13", max_version="TLS12"), "min_version"),
    ],
)
def test_tls_that_cannot_be_is_a_usage_error(config: TlsServerConfig, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        make_tls(config, TLS)


def test_no_file_asks_nothing_of_anybody() -> None:
    access = ConfigWatch(None).access()
    assert access.tls is None
    assert access.auth.allows(None)
    assert access.headers == ()


def touch(file: Path, stamp: int) -> None:
    os.utime(file, ns=(stamp, stamp))


def test_a_changed_file_is_read_again_and_a_broken_one_is_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, f"basic_auth_users: {{bob: {HASH}}}")
    watch = ConfigWatch(file)
    before = watch.access()
    assert watch.access() is before
    assert not before.auth.allows(basic("eve", PASSWORD))
    write(tmp_path, f"basic_auth_users: {{eve: {HASH}}}")
    touch(file, 1)
    changed = watch.access()
    assert changed.auth.allows(basic("eve", PASSWORD))
    assert not changed.auth.allows(basic("bob", PASSWORD))
    write(tmp_path, "nonsense: 1")
    touch(file, 2)
    assert watch.access() is changed
    assert "stays in force" in capsys.readouterr().err
    assert watch.access() is changed
    assert capsys.readouterr().err == ""
    file.unlink()
    assert watch.access() is changed


def test_a_renewed_certificate_is_taken_up(tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        shutil.copy(TLS / name, tmp_path)
    watch = ConfigWatch(write(tmp_path, "tls_server_config: {cert_file: cert.pem, key_file: key.pem}"))
    before = watch.access().tls
    assert before is not None
    touch(tmp_path / "cert.pem", 1)
    after = watch.access().tls
    assert after is not None
    assert after is not before


def test_a_file_wrong_from_the_start_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        ConfigWatch(write(tmp_path, "tls_server_config: {cert_file: none, key_file: none}"))
    assert web_config.load(write(tmp_path, "")) == WebConfig()
