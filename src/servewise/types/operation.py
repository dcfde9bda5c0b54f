"""What running a fleet adds to its plan: a replica that fails, and a fleet that follows the load."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Autoscaling", "Failure", "Outage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The traffic on ``num_replicas`` of which one fails.

    Parameters
    ----------
    num_replicas : int
    attainment : float
        Share of requests that meet every joint limit, those that were sent twice counted from their first send.
    promise_kept : bool
    num_retries : int
        Requests that lost their replica.
    usd_per_h : float [$/h]
    """

    num_replicas: int
    attainment: float
    promise_kept: bool
    num_retries: int
    usd_per_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A replica fails when most requests are coming, and is started again.

    Parameters
    ----------
    at_s : float [s]
        When, from the start of the traffic.
    start_up_s : float [s]
        Until it serves again.
    planned, one_more : Outage
        The fleet as planned, and with one replica more.
    """

    at_s: float
    start_up_s: float
    planned: Outage
    one_more: Outage


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """A fleet that follows the rate of the traffic.

    Parameters
    ----------
    headroom : float
        Replicas are ordered for the rate of the last minutes times this.
    fewest, most : int
        Replicas up at once.
    mean_replicas : float
        Replicas that are paid for, on average.
    num_starts : int
    attainment : float
    promise_kept : bool
    usd_per_month, fixed_usd_per_month : float [$]
        Of this fleet and of the planned one, if the traffic repeated all month.
    """

    headroom: float
    fewest: int
    most: int
    mean_replicas: float
    num_starts: int
    attainment: float
    promise_kept: bool
    usd_per_month: float
    fixed_usd_per_month: float
