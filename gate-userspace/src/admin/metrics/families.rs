//! The metric families, and how their series are written: Prometheus' text format, version 0.0.4.
//!
//! Values of labels are names of the configuration, which hold nothing that would have to be escaped, or words of gate's own.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// A metric: all series of one name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    name: &'static str,
    kind: MetricType,
    help: &'static str,
}

impl Family {
    /// A count that never falls; its name ends with `_total`.
    pub(super) const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricType::Counter, help }
    }

    /// A value that rises and falls.
    pub(super) const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricType::Gauge, help }
    }

    /// Times.
    pub(super) const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricType::Histogram, help }
    }

    /// Begins it: its series follow, if it has any.
    pub(super) fn begin<'e>(&self, encoder: &'e mut DescriptorEncoder<'_>) -> Result<Series<'e>, fmt::Error> {
        encoder.encode_descriptor(self.name, self.help, None, self.kind).map(Series)
    }

    /// Writes it, if it has one series alone.
    pub(super) fn write(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.begin(encoder)?.0.encode_gauge(&value)
    }
}

/// The series of a family.
#[derive(Debug)]
pub(super) struct Series<'e>(MetricEncoder<'e>);

/// Names and values of labels.
pub(super) type Labels<'l> = [(&'l str, &'l str)];

impl Series<'_> {
    /// Adds one.
    pub(super) fn add(&mut self, labels: &Labels<'_>, value: impl EncodeGaugeValue) -> fmt::Result {
        // The encoder's own counters are OpenMetrics': their suffix is no part of the family's name.
        self.0.encode_family(&labels)?.encode_gauge(&value)
    }

    /// Adds a counter's, unless it is zero: a series appears when it is first touched.
    pub(super) fn add_touched(&mut self, labels: &Labels<'_>, count: u64) -> fmt::Result {
        if count == 0 { Ok(()) } else { self.add(labels, count) }
    }

    /// Adds a histogram's; `buckets` are upper bounds, each with the count between it and the one before.
    pub(super) fn add_histogram(
        &mut self,
        labels: &Labels<'_>,
        sum: f64,
        buckets: &[(f64, u64)],
    ) -> fmt::Result {
        let count = buckets.iter().map(|(_, count)| count).sum();
        self.0.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, buckets, None)
    }
}
