"""The page's files: what is served, under which headers, and that they are what they should be."""

import gzip
import re
import shutil

import pytest

from twostroke.server.page.files import STATIC, page_files

from .vendored import FILES, VENDOR, packages

OWN = sorted(
    path
    for path in STATIC.rglob("*")
    if path.suffix in (".js", ".css", ".html") and VENDOR not in path.parents
)


def test_the_page_is_at_the_root_and_allows_only_itself(live):
    reply = live.get("/")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert "http:" not in policy
    assert reply.headers["X-Frame-Options"] == "DENY"
    assert b"<script>" not in reply.body, "no inline scripts"
    assert not re.search(rb"\s(style|on\w+)=", reply.body), "no inline styles or handlers"


def test_the_page_links_to_what_is_there(live):
    links = re.findall(r'<a href="([^"#]+)"', live.get("/").body.decode())
    assert links == ["docs"]
    assert live.get("/docs").status == 200


def test_who_has_a_file_is_told_so_and_others_get_it_compressed(live):
    path = "/page/script/app.js"
    first = live.get(path, Accept_Encoding="gzip")
    plain = live.get(path)
    assert first.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(first.body) == plain.body == (STATIC / "script/app.js").read_bytes()
    assert first.headers["Vary"] == "Accept-Encoding"
    assert first.headers["Content-Type"] == "text/javascript; charset=utf-8"
    again = live.get(path, If_None_Match=first.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    assert live.get(path, If_None_Match='"another"').status == 200
    head = live.ask("HEAD", path)
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize(
    "path",
    ["/page/none.js", "/page/../files.py", "/page/%2e%2e/files.py", "/page/vendor/marked.LICENSE"],
)
def test_nothing_else_is_served(live, path):
    reply = live.get(path)
    assert reply.status == 404
    assert reply.error()["code"] == "not_found"


def test_the_page_needs_no_key_and_what_it_asks_does(serve_echo):
    live = serve_echo(server={"keys": ["secret"]})
    assert live.get("/").status == 200
    assert live.get("/page/script/app.js").status == 200
    assert live.get("/v1/models").status == 401


def test_everything_that_is_asked_for_is_there():
    served = set(page_files())
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="page/([^"]+)"', html)
    assert named
    for path in (p for p in OWN if p.suffix == ".js"):
        for target in re.findall(r'from "([^"]+)"', path.read_text(encoding="utf-8")):
            named.append((path.parent / target).resolve().relative_to(STATIC).as_posix())
    assert set(named) <= served
    scripts = {name for name in served if name.endswith((".js", ".mjs", ".css"))}
    assert scripts <= set(named), "and nothing is there that nobody asks for"


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_own_files_are_short_and_name_no_other_host(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert max(map(len, text.splitlines())) <= 220
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not here")
def test_what_is_vendored_is_the_pinned_packages_byte_for_byte():
    kept = {path for folder in {t.parent for t in FILES.values()} for path in folder.iterdir()}
    assert kept == set(FILES.values())
    with packages() as found:
        for source, target in FILES.items():
            assert target.read_bytes() == (found / source).read_bytes(), target.name
