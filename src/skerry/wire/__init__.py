"""The shapes on the wire, shared by the API and the SDK. Field names follow the published client `flaxcloud` 0.6.0."""
