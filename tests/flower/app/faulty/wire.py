"""Faults below the ClientApp: what a client with protocol code of its own can send."""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.app import Message

WIRE: dict[str, Callable[[Message], Message]] = {}


def wire(function: Callable[[Message], Message]) -> Callable[[Message], Message]:
    WIRE[f"wire-{function.__name__}"] = function
    return function


@wire
def garbled(reply: Message) -> Message:
    """An object that does not parse."""
    from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

    array = reply.content["arrays"]["weight"]
    vars(array)["deflate"] = lambda: add_header_to_object_body(object_body=b"{", obj=array)
    return reply


@wire
def impostor(reply: Message) -> Message:
    """Another node's number in the reply itself, its own in what announces it."""

    def forged() -> bytes:
        own = vars(reply.metadata)["_src_node_id"]
        vars(reply.metadata)["_src_node_id"] = own ^ 1
        try:
            return Message.deflate(reply)
        finally:
            vars(reply.metadata)["_src_node_id"] = own

    vars(reply)["deflate"] = forged
    return reply


@wire
def unsent(reply: Message) -> Message:
    """A reply that is announced, and whose arrays never come."""
    from flwr.supernode.runtime import run_clientapp

    run_clientapp.push_objects = lambda *args, **more: time.sleep(120)
    return reply
