"""The queue in a FastAPI application: producers and consumers live as long as the application does (mechanism Q3).

    from typing import Annotated

    from fastapi import Depends, FastAPI

    from mqclient import Message, MessageExt, Producer
    from mqclient.fastapi import MQ

    mq = MQ("mq://127.0.0.1:9876")
    app = FastAPI(lifespan=mq.lifespan)


    @mq.consumer("closers", "orders", "created")
    async def close(message: MessageExt) -> None:
        print("closing", *message.keys)


    @app.post("/orders/{order_id}", status_code=201)
    async def place(order_id: str, producer: Annotated[Producer, Depends(mq.producer("shop"))]) -> str:
        result = await producer.send(Message("orders", b"{}", tag="created", keys=[order_id], delay_level=16))
        return result.message_id

In tests the same application runs on `memory://`, where thirty minutes pass when they are told to. The transport of
httpx runs no lifespan, so the test enters it (TestClient runs the application on a loop of its own, and is told so):

    mq.url = broker.url
    async with mq.lifespan(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as http:
        await http.post("/orders/17")
        await clock.advance(30 * 60)
        await broker.idle()  # plain handlers and many a database's driver work in threads

A handler's parameter may be a Pydantic model, which is read from the body, and `mq.message(topic, model, ...)` makes a
Message of one. A group may have a handler for each tag or topic, and `orderly=True`. Routes that cannot send answer 503
or 504 after `mq.install_error_handlers(app)`.

Needs FastAPI: `hourglass-mqclient[fastapi]`.
"""

from mqclient.fastapi.handlers import ConsumerOptions, JsonSerializer, Serializer, install_error_handlers
from mqclient.fastapi.mq import MQ, MessageFields, ProducerDependency

__all__ = [
    "MQ",
    "ConsumerOptions",
    "JsonSerializer",
    "MessageFields",
    "ProducerDependency",
    "Serializer",
    "install_error_handlers",
]
