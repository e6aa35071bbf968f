"""Span classes: the few kinds of work that every operator, kernel and span falls into. Names only, no measure."""

from enum import StrEnum


class SpanClass(StrEnum):
    """Stable between profiles, models and hardware, so that a class can be compared, ranked and scaled.

    >>> SpanClass.ELEMENTWISE.top
    <SpanClass.COMPUTE: 'compute'>
    """

    COMPUTE = "compute"
    """Matrix products: projections, feed-forward layers, experts."""
    ELEMENTWISE = "compute.elementwise"
    """Norms, activations, rotary embedding, sampling: a subclass of compute, and half of the kernel time in traces."""
    ATTENTION = "attention"
    """Reading the KV cache and the products with it."""
    COMMUNICATION = "communication"
    """All-reduce, all-gather, all-to-all of experts, hops between pipeline stages."""
    COPY = "copy"
    """Copies between host and device, KV blocks stored and loaded."""
    LAUNCH = "launch"
    """Runtime: preparing a step on the host, starting kernels."""
    SYNC = "sync"
    """Waiting: the host for the device, a device for another."""

    @property
    def top(self) -> "SpanClass":
        """The class itself, or the one it is a subclass of."""
        return SpanClass(self.value.partition(".")[0])
