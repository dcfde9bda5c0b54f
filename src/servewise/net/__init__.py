"""Every outbound connection: requests, streams and their time stamps."""

from servewise.net.client import MAX_EVENTS, Client, Exchange, raise_file_limit
from servewise.net.clock import Clock
from servewise.net.http1 import HttpAnswer, request_head
from servewise.net.server import Server, addresses, is_local, parse_server

__all__ = [
    "MAX_EVENTS",
    "Client",
    "Clock",
    "Exchange",
    "HttpAnswer",
    "Server",
    "addresses",
    "is_local",
    "parse_server",
    "raise_file_limit",
    "request_head",
]
