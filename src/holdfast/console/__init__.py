# SPDX-License-Identifier: Apache-2.0
"""What people see at `/`: for now a front page that says what runs and where things are.

It shows nothing of any project: it is open to everybody, like the version documents.
"""

import html

import holdfast
from holdfast.api.ask import Ask, Reply

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem}"
    "code{background:#8882;padding:.1em .3em;border-radius:.2em}"
    "@media(prefers-color-scheme:dark){body{background:#16181c;color:#e6e6e6}a{color:#8ab4f8}}"
)
_LINKS = (
    ("/reservation", "Reservations, the Blazar v1 contract"),
    ("/instance-ha", "Instance HA, the Masakari v1 contract"),
    ("/holdfast/v1/openapi.json", "Holdfast's own API, as an OpenAPI document"),
    ("/readyz", "Ready? Database and managers"),
    ("/livez", "Alive? The loop of due work"),
    ("/metrics", "Prometheus metrics"),
)
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)


def front_page(ask: Ask) -> Reply:
    conf = ask.services.conf
    links = "".join(
        f'<li><a href="{path}"><code>{path}</code></a> {html.escape(what)}</li>'
        for path, what in _LINKS
    )
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Holdfast</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style></head><body><h1>Holdfast {holdfast.__version__}</h1>"
        "<p>Reserves, watches and heals compute.</p>"
        f"<p>Cloud: <strong>{html.escape(conf.cloud.driver)}</strong>, authentication: "
        f"<strong>{html.escape(conf.auth_strategy)}</strong>.</p><ul>{links}</ul>"
        f"<p>Try <code>HOLDFAST_URL={html.escape(ask.base_url)} holdfast lease list</code>.</p>"
        "</body></html>"
    )
    headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
    return Reply(page.encode(), headers=headers, content_type="text/html; charset=utf-8")
