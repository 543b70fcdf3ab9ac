"""Whether other machines reach a server, and whether it may then be as open as it is."""

from __future__ import annotations

import ipaddress

from twostroke.config.server import ServerConfig


def is_own_address(host: str) -> bool:
    """Whether only this machine reaches the address; of names only localhost is known to be so."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def open_doors(server: ServerConfig) -> list[str]:
    """Why the server may not start as it is configured, each a sentence with the ways out.

    Other machines may only reach a server that asks for keys (or for client certificates) and
    encrypts, unless `server.insecure` says what it does without.
    """
    if is_own_address(server.host):
        return []
    reach = f"server.host is {server.host}, which other machines may reach, and"
    alone = "server.host: 127.0.0.1 keeps it to this machine"
    doors = []
    if not server.has_keys and server.tls.ca is None and "keys" not in server.insecure:
        doors.append(
            f"{reach} whoever reaches it may use the models. Set server.keys, or server.key_file "
            "(`twostroke key create` makes one), or server.tls.ca to ask for client certificates; "
            f"{alone}; server.insecure: [keys] lets everybody in."
        )
    if server.tls.certificate is None and "tls" not in server.insecure:
        doors.append(
            f"{reach} what is sent, keys too, can be read on the way. Set server.tls; {alone}; "
            "server.insecure: [tls] is for a server behind a proxy that encrypts, or in a network "
            "of your own."
        )
    return doors
