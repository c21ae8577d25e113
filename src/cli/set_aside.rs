//! `seckill dlq` and `seckill quarantine`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Global, output, services};
use crate::domain::{Uuid, format_rfc3339_micros};
use crate::set_aside::{DeadLetter, Filter, Quarantined, SetAside, SetAsideError};

fn message_id(text: &str) -> Result<Uuid, String> {
    Uuid::parse(text.as_bytes()).ok_or_else(|| format!("{text} is no UUID"))
}

/// How a replay goes.
#[derive(Debug, Clone, Copy, Args)]
pub struct Pace {
    /// Say what would be sent, send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Messages a second
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
}

/// `seckill dlq`
#[derive(Debug, Args)]
pub struct DlqArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DlqCommand,
}

/// The subcommands of `seckill dlq`.
#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// Show messages that were delivered too often
    #[command(after_help = "\
Examples:
  seckill dlq list                                those without an outcome
  seckill dlq list --settled --activity-id 1001   all of one activity, the settled ones too")]
    List(DlqFilter),
    /// Send them to the order topic again; what is settled already is answered by the inbox
    #[command(after_help = "\
Examples:
  seckill dlq replay --dry-run
  seckill dlq replay --message-id 0197a1c2-... --rate 10")]
    Replay(DlqReplay),
}

/// Which dead letters.
#[derive(Debug, Clone, Args)]
pub struct DlqFilter {
    /// Only this message; may be repeated
    #[arg(long, value_name = "UUID", value_parser = message_id)]
    pub message_id: Vec<Uuid>,
    /// Only of this activity
    #[arg(long, value_name = "ID")]
    pub activity_id: Option<i64>,
    /// Only of this SKU
    #[arg(long, value_name = "ID")]
    pub sku_id: Option<i64>,
    /// Those that have an outcome meanwhile, too
    #[arg(long)]
    pub settled: bool,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub limit: usize,
}

/// `seckill dlq replay`
#[derive(Debug, Args)]
pub struct DlqReplay {
    /// Which.
    #[command(flatten)]
    pub filter: DlqFilter,
    /// How.
    #[command(flatten)]
    pub pace: Pace,
}

/// `seckill quarantine`
#[derive(Debug, Args)]
pub struct QuarantineArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: QuarantineCommand,
}

/// The subcommands of `seckill quarantine`.
#[derive(Debug, Subcommand)]
pub enum QuarantineCommand {
    /// Show messages that could not be ordered
    #[command(after_help = "\
Examples:
  seckill quarantine list
  seckill quarantine list --state all --reason UNSUPPORTED_SCHEMA")]
    List(QuarantineFilter),
    /// Show one with its bytes
    Show {
        /// Its number in the list
        id: i64,
    },
    /// Send open ones to the order topic again, as they are
    #[command(after_help = "\
Examples:
  seckill quarantine replay 17 18
  seckill quarantine replay --reason UNSUPPORTED_SCHEMA --dry-run     after an update that knows the schema

One whose unit has gone back is turned down again (RESERVATION_RELEASED): its buyer may buy anew.")]
    Replay(QuarantineReplay),
    /// Close open ones for good: nothing will be done about them
    Discard {
        /// Their numbers in the list
        #[arg(required = true)]
        ids: Vec<i64>,
    },
}

/// In which state.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum QuarantineState {
    /// Nobody has decided.
    Open,
    /// Sent again.
    Replayed,
    /// Given up.
    Discarded,
    /// Any.
    All,
}

/// Which messages in quarantine.
#[derive(Debug, Clone, Args)]
pub struct QuarantineFilter {
    /// In which state
    #[arg(long, value_enum, default_value_t = QuarantineState::Open)]
    pub state: QuarantineState,
    /// Only with this reason
    #[arg(long, value_name = "CODE")]
    pub reason: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub limit: usize,
}

/// `seckill quarantine replay`
#[derive(Debug, Args)]
#[group(id = "which", required = true, multiple = false, args = ["ids", "reason", "all"])]
pub struct QuarantineReplay {
    /// Their numbers in the list
    pub ids: Vec<i64>,
    /// All open ones with this reason
    #[arg(long, value_name = "CODE")]
    pub reason: Option<String>,
    /// All open ones
    #[arg(long)]
    pub all: bool,
    /// At most so many at once; the rest is for the next time
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub limit: usize,
    /// How.
    #[command(flatten)]
    pub pace: Pace,
}

/// Runs `seckill dlq`.
pub fn dlq(args: &DlqArgs, global: &Global) -> ExitCode {
    with(global, async |aside| match &args.command {
        DlqCommand::List(filter) => {
            let letters = aside.dead_letters(&chosen(filter), filter.limit).await?;
            let text = || table(&letters, "no dead letters", dead_text);
            Ok(output::answer(global, text, || json!({ "ok": true, "dead_letters": all(&letters, dead_json) })))
        }
        DlqCommand::Replay(replay) => {
            let letters = aside.dead_letters(&chosen(&replay.filter), replay.filter.limit).await?;
            let text = || table(&letters, "no dead letters", dead_text);
            let sent = send_all(replay.pace, &letters, async |letter| aside.replay_dead_letter(letter).await).await?;
            Ok(replayed(global, replay.pace, sent, text, || all(&letters, dead_json)))
        }
    })
}

/// Runs `seckill quarantine`.
pub fn quarantine(args: &QuarantineArgs, global: &Global) -> ExitCode {
    with(global, async |aside| match &args.command {
        QuarantineCommand::List(filter) => {
            let state = match filter.state {
                QuarantineState::Open => "OPEN",
                QuarantineState::Replayed => "REPLAYED",
                QuarantineState::Discarded => "DISCARDED",
                QuarantineState::All => "",
            };
            let reason = filter.reason.as_deref().unwrap_or_default();
            let rows = aside.quarantined(state, reason, &[], filter.limit).await?;
            let text = || table(&rows, "nothing in quarantine", quarantined_text);
            Ok(output::answer(global, text, || json!({ "ok": true, "quarantine": all(&rows, quarantined_json) })))
        }
        QuarantineCommand::Show { id } => match aside.quarantined("", "", &[*id], 1).await?.first() {
            None => Ok(output::failed(global, format!("there is no message {id} in quarantine"))),
            Some(row) => {
                let text = || format!("{}\n\n{}", quarantined_text(row), String::from_utf8_lossy(&row.body));
                Ok(output::answer(
                    global,
                    text,
                    || json!({ "ok": true, "message": quarantined_json(row), "body": body(row) }),
                ))
            }
        },
        QuarantineCommand::Replay(replay) => {
            // Named rows are read in whatever state they are, so that one which was decided before is said.
            let state = if replay.ids.is_empty() { "OPEN" } else { "" };
            let reason = replay.reason.as_deref().unwrap_or_default();
            let rows = aside.quarantined(state, reason, &replay.ids, replay.limit.max(replay.ids.len())).await?;
            if let Some(missing) = replay.ids.iter().find(|id| !rows.iter().any(|row| row.id == **id)) {
                return Ok(output::failed(
                    global,
                    format!("there is no message {missing} in quarantine; nothing was sent"),
                ));
            }
            if let Some(decided) = rows.iter().find(|row| row.state != "OPEN") {
                let (id, state) = (decided.id, &decided.state);
                return Ok(output::failed(global, format!("message {id} is {state} already; nothing was sent")));
            }
            let text = || table(&rows, "nothing in quarantine", quarantined_text);
            let sent = send_all(replay.pace, &rows, async |row| aside.replay_quarantined(row).await).await?;
            Ok(replayed(global, replay.pace, sent, text, || all(&rows, quarantined_json)))
        }
        QuarantineCommand::Discard { ids } => {
            let mut discarded = 0;
            for id in ids {
                discarded += u64::from(aside.discard(*id).await?);
            }
            let text =
                || format!("{discarded} of {} discarded; the others were decided before or do not exist", ids.len());
            Ok(output::answer(global, text, || json!({ "ok": true, "discarded": discarded })))
        }
    })
}

/// Runs a command on the services that the settings name.
fn with(global: &Global, command: impl AsyncFnOnce(&SetAside) -> Result<ExitCode, SetAsideError>) -> ExitCode {
    let settings = match services::required(global, "embedded mode has no topic to set messages aside from") {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let done = services::with(&settings, async |services| {
        command(&SetAside::new(services.rocketmq.clone(), services.postgres.clone(), &settings.rocketmq)).await
    });
    match done {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => output::failed(global, error),
        Err(error) => output::failed(global, error),
    }
}

/// Sends one after the other at the pace; how many. The first that fails ends it: the rest is still set aside.
async fn send_all<T>(
    pace: Pace,
    items: &[T],
    send: impl AsyncFn(&T) -> Result<(), SetAsideError>,
) -> Result<u64, SetAsideError> {
    if pace.dry_run {
        return Ok(0);
    }
    let started = shards::now();
    for (number, item) in (0u32..).zip(items) {
        shards::sleep_until(started + Duration::from_secs(1) * number / pace.rate).await;
        send(item).await?;
    }
    Ok(items.len() as u64)
}

fn replayed(
    global: &Global,
    pace: Pace,
    sent: u64,
    text: impl FnOnce() -> String,
    rows: impl FnOnce() -> Vec<Value>,
) -> ExitCode {
    let end = if pace.dry_run { "dry run: nothing was sent".to_owned() } else { format!("{sent} sent again") };
    output::answer(global, || format!("{}\n{end}", text()), || json!({ "ok": true, "sent": sent, "messages": rows() }))
}

fn chosen(filter: &DlqFilter) -> Filter {
    Filter {
        message_ids: filter.message_id.clone(),
        activity_id: filter.activity_id,
        sku_id: filter.sku_id,
        settled: filter.settled,
    }
}

fn table<T>(rows: &[T], none: &str, line: impl Fn(&T) -> String) -> String {
    if rows.is_empty() { none.to_owned() } else { rows.iter().map(line).collect::<Vec<_>>().join("\n") }
}

fn all<T>(rows: &[T], one: impl Fn(&T) -> Value) -> Vec<Value> {
    rows.iter().map(one).collect()
}

fn time(micros: i64) -> String {
    String::from_utf8_lossy(&format_rfc3339_micros(micros.unsigned_abs())).into_owned()
}

fn dead_text(letter: &DeadLetter) -> String {
    let about = match &letter.event {
        Some(event) => format!("message {} of sale {}, user {}", event.message_id, event.sku, event.user_id.get()),
        None => "a message that cannot be read".to_owned(),
    };
    let outcome = letter.settled.as_deref().unwrap_or("no outcome");
    let died = time(i64::try_from(letter.died_at_ms).unwrap_or(0) * 1_000);
    format!("{}  {died}  {about}, delivered {} times, {outcome}", letter.place, letter.attempt)
}

fn dead_json(letter: &DeadLetter) -> Value {
    let event = letter.event.as_ref();
    json!({
        "place": letter.place, "origin_message_id": letter.origin, "delivery_attempt": letter.attempt,
        "died_at_ms": letter.died_at_ms, "settled": letter.settled,
        "message_id": event.map(|event| event.message_id.to_string()),
        "activity_id": event.map(|event| event.sku.activity.get()), "sku_id": event.map(|event| event.sku.sku.get()),
        "user_id": event.map(|event| event.user_id.get()),
    })
}

fn quarantined_text(row: &Quarantined) -> String {
    let unit = match (row.reservation_id, row.released) {
        (Some(id), true) => format!(", unit of reservation {id} given back"),
        (Some(id), false) => format!(", reservation {id}"),
        (None, _) => String::new(),
    };
    format!(
        "{:>6}  {}  {}  {}: {} (delivery {}, {} bytes{unit})",
        row.id,
        time(row.created_at),
        row.state,
        row.reason,
        row.detail,
        row.attempt,
        row.body.len()
    )
}

fn quarantined_json(row: &Quarantined) -> Value {
    json!({
        "id": row.id, "state": row.state, "reason": row.reason, "detail": row.detail,
        "broker_message_id": row.broker_message_id, "delivery_attempt": row.attempt,
        "message_id": row.message_id.map(|id| id.to_string()),
        "reservation_id": row.reservation_id.map(|id| id.to_string()), "released": row.released,
        "created_at": time(row.created_at),
    })
}

/// The bytes as text where they are text, else as hexadecimal.
fn body(row: &Quarantined) -> Value {
    match std::str::from_utf8(&row.body) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "hex": row.body.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}
