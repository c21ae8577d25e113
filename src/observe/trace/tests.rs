//! Spans: which are recorded, and what becomes of them.

use super::*;
use std::sync::mpsc::{Receiver, sync_channel};

const CALLER: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn tracer(sample: f64, limit_per_s: u32, waiting: usize) -> (Tracer, Rc<Metrics>, Receiver<SpanRecord>) {
    let (sender, receiver) = sync_channel(waiting);
    let settings = Settings { otlp: "http://collector".to_owned(), sample, limit_per_s };
    let seed = TracerSeed { settings: Some(settings), sender: Some(sender) };
    let metrics = Rc::new(Metrics::default());
    (seed.tracer(&metrics), metrics, receiver)
}

fn caller() -> TraceContext {
    TraceContext::parse(CALLER).unwrap()
}

#[test]
fn spans_of_a_sampled_trace_name_each_other() {
    shards::run(async {
        let (tracer, metrics, spans) = tracer(0.0, 100, 100);
        let own = caller().child(7);
        let root = tracer.span(Step::HttpSubmit, own, Some(caller().span_id)).remote();
        let send = tracer.child(Step::Send, &own);
        send.note("seckill.outcome", || "stored");
        send.fail("late");
        let sent = send.context().unwrap();
        root.past(Step::Commit, 5, 3);
        drop(send);
        drop(root);
        let seen: Vec<_> = spans.try_iter().collect();
        assert_eq!(seen.iter().map(|span| span.step).collect::<Vec<_>>(), [Step::Commit, Step::Send, Step::HttpSubmit]);
        assert!(seen.iter().all(|span| span.context.trace_id == caller().trace_id && span.end_ns >= span.start_ns));
        assert_eq!(seen[0].parent, Some(own.span_id));
        assert_eq!((seen[1].parent, seen[1].context, seen[1].error), (Some(own.span_id), sent, Some("late")));
        assert_eq!(seen[1].attributes, [("seckill.outcome", Value::Word("stored"))]);
        assert_eq!((seen[2].parent, seen[2].remote_parent), (Some(caller().span_id), true));
        assert_eq!((metrics.trace_spans.get(), metrics.trace_spans_dropped.get()), (3, 0));
    });
}

#[test]
fn a_message_is_followed_by_its_link() {
    shards::run(async {
        let (tracer, _, spans) = tracer(0.0, 100, 100);
        drop(tracer.child(Step::Consume, &caller()).linked(caller()).since(11));
        let span = spans.try_recv().unwrap();
        assert_eq!((span.parent, span.link, span.start_ns), (Some(caller().span_id), Some(caller()), 11));
        assert!(span.remote_parent);
    });
}

#[test]
fn what_is_not_sampled_leaves_no_span() {
    shards::run(async {
        let (tracer, metrics, spans) = tracer(0.5, 100, 100);
        let quiet = TraceContext { flags: 0, ..caller() };
        let span = tracer.child(Step::Send, &quiet);
        span.note("seckill.outcome", || -> &'static str { unreachable!("nobody asks") });
        assert_eq!(span.context(), None);
        drop(span);
        drop(tracer.span(Step::HttpSubmit, quiet, None));
        drop(Tracer::off().child(Step::Send, &caller()));
        assert!(spans.try_recv().is_err());
        assert_eq!(metrics.trace_spans.get() + metrics.trace_spans_dropped.get(), 0);
        assert!(tracer.samples(0) && !tracer.samples(u64::MAX) && !Tracer::off().samples(0));
    });
}

#[test]
fn what_is_too_much_is_dropped_and_counted() {
    shards::run(async {
        let (limited, metrics, spans) = tracer(1.0, 3, 100);
        (0..10).for_each(|_| drop(limited.child(Step::Send, &caller())));
        assert_eq!((spans.try_iter().count(), metrics.trace_spans_dropped.get()), (3, 7));
        let (full, metrics, spans) = tracer(1.0, 1_000, 2);
        (0..10).for_each(|_| drop(full.child(Step::Send, &caller())));
        assert_eq!((spans.try_iter().count(), metrics.trace_spans.get(), metrics.trace_spans_dropped.get()), (2, 2, 8));
    });
}
