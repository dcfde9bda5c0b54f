"""What running the winner adds, in words: a replica that fails, a fleet that follows the load."""

from __future__ import annotations

from servewise.report.words import count
from servewise.types import Autoscaling, Deployment, Failure, Outage
from servewise.units import HOURS_PER_MONTH, format_duration, format_usd

__all__ = ["autoscaling_words", "failure_words", "unit"]


def failure_words(failure: Failure, deployment: Deployment) -> str:
    """What a failure breaks, and what one replica more would cost and keep; a group fails as a whole."""
    extra = (failure.one_more.usd_per_h - failure.planned.usd_per_h) * HOURS_PER_MONTH
    return (
        f"one {unit(deployment)} fails at the busiest moment and serves again after "
        f"{format_duration(failure.start_up_s)}: "
        f"{_outage_words(failure.planned)} ({count(failure.planned.num_retries, 'request')} sent again); "
        f"{_outage_words(failure.one_more)} (+{format_usd(extra)} a month)"
    )


def unit(deployment: Deployment) -> str:
    """What a fleet consists of."""
    return "replica" if deployment.disaggregation is None else "group"


def _outage_words(outage: Outage) -> str:
    kept = "keeps" if outage.promise_kept else "breaks"
    return f"a fleet of {outage.num_replicas} {kept} the promise at {100 * outage.attainment:.2f}%"


def autoscaling_words(scaling: Autoscaling, deployment: Deployment) -> str:
    """What a fleet that follows the load costs beside a fixed one."""
    kept = "keeping" if scaling.promise_kept else "breaking"
    return (
        f"{scaling.fewest} to {count(scaling.most, unit(deployment))} "
        f"({scaling.mean_replicas:.1f} paid for on average, "
        f"{count(scaling.num_starts, 'start')}, {scaling.headroom:g} x the rate of the last 5 minutes) would cost "
        f"{format_usd(scaling.usd_per_month)} a month instead of {format_usd(scaling.fixed_usd_per_month)}, "
        f"{kept} the promise at {100 * scaling.attainment:.2f}%"
    )
