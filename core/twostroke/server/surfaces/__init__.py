"""The ways of speaking to the engine: each package translates one API, and exports `SURFACE`."""
