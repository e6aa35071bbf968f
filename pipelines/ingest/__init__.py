"""Adapters: what engines, collectors and traces emit -> records of `schemas`. No state of the twin here."""
