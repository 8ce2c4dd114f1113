"""What the tests of judges share: one pretended chat server for all of them."""

import pytest

from helpers.chat_server import chat_server


@pytest.fixture(scope="session")
def server():
    with chat_server() as running:
        yield running
