"""The description of an endpoint as OpenAPI 3.1, made of its surfaces' routes and shapes."""

from twostroke.server.openapi.document import openapi_document

__all__ = ["openapi_document"]
