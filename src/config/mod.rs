//! Settings: the shipped `seckill.toml` is the only source of defaults; a user's file, the environment and `--set`
//! are laid over it, in this order. After [`load`] nothing sees a string that still has to be understood.

mod check;
mod sections;

use std::path::Path;

use toml::{Table, Value};

pub use sections::*;

/// The defaults, as shipped.
pub const DEFAULTS: &str = include_str!("../../seckill.toml");

/// Environment variables that name services and secrets, and the setting each one sets.
pub const ENVIRONMENT: [(&str, &str); 5] = [
    ("SECKILL_REDIS", "redis.addr"),
    ("SECKILL_PG_URL", "postgres.url"),
    ("SECKILL_NAMESRV", "rocketmq.name_servers"),
    ("SECKILL_JWT_KEY", "identity.jwt_key"),
    ("SECKILL_ADMIN_TOKEN", "admin.token"),
];

/// Why settings cannot be used. Each message names the setting and what it may be.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file asked for.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not TOML, an unknown setting, or a value of the wrong type.
    #[error("{origin}: {message}")]
    Syntax {
        /// The file or option it came from.
        origin: String,
        /// What is wrong, with the place where the parser knows it.
        message: String,
    },
    /// Values that break a rule, one line each.
    #[error("{}", .0.join("\n"))]
    Rules(Vec<String>),
}

/// Where settings come from, beside the defaults.
#[derive(Debug, Default, Clone)]
pub struct Sources<'a> {
    /// `--config`.
    pub file: Option<&'a Path>,
    /// Environment as (name, value); only the names in [`ENVIRONMENT`] are looked at.
    pub environment: Vec<(String, String)>,
    /// `--set section.key=value`.
    pub overrides: Vec<String>,
}

/// Reads, merges and checks the settings.
///
/// # Errors
/// [`ConfigError`] with every broken rule at once, so that one round of edits is enough.
pub fn load(sources: &Sources<'_>) -> Result<Config, ConfigError> {
    let mut table = parse("the built-in defaults", DEFAULTS)?;
    if let Some(path) = sources.file {
        let origin = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: origin.clone(), source })?;
        let layer = parse(&origin, &text)?;
        overlay(&mut table, layer, &origin, "")?;
    }
    for (name, setting) in ENVIRONMENT {
        let value = sources.environment.iter().find(|(key, value)| key == name && !value.is_empty());
        match value {
            Some((_, url)) if url.starts_with("redis://") => {
                for (setting, value) in redis_url(url).map_err(|message| wrong_url(name, message))? {
                    set(&mut table, name, setting, &value)?;
                }
            }
            Some((_, value)) => set(&mut table, name, setting, value)?,
            None => {}
        }
    }
    for text in &sources.overrides {
        let Some((setting, value)) = text.split_once('=') else {
            let origin = format!("--set {text}");
            return Err(ConfigError::Syntax { origin, message: "write it as section.key=value".into() });
        };
        // Without the value, which may be a secret.
        let origin = format!("--set {}", setting.trim());
        set(&mut table, &origin, setting.trim(), value.trim())?;
    }
    let config: Config = Value::Table(table).try_into().map_err(|error: toml::de::Error| ConfigError::Syntax {
        origin: "settings".into(),
        message: error.message().to_owned(),
    })?;
    let broken = check::broken_rules(&config);
    if broken.is_empty() { Ok(config) } else { Err(ConfigError::Rules(broken)) }
}

fn wrong_url(origin: &str, message: &str) -> ConfigError {
    ConfigError::Syntax { origin: origin.into(), message: message.into() }
}

/// `redis://[user[:password]@]host:port[/database]` as settings. Parts that are absent keep what was set before.
fn redis_url(url: &str) -> Result<Vec<(&'static str, String)>, &'static str> {
    const FORM: &str = "must be host:port or redis://[user[:password]@]host:port[/database]";
    let rest = url.strip_prefix("redis://").ok_or(FORM)?;
    let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
    let (addr, database) = rest.split_once('/').unwrap_or((rest, ""));
    let mut settings = vec![("redis.addr", addr.to_owned())];
    if let Some(login) = login {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        settings.push(("redis.username", user.to_owned()));
        settings.push(("redis.password", password.to_owned()));
    }
    if !database.is_empty() {
        if !database.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(FORM);
        }
        settings.push(("redis.database", database.to_owned()));
    }
    Ok(settings)
}

fn parse(origin: &str, text: &str) -> Result<Table, ConfigError> {
    text.parse().map_err(|error: toml::de::Error| {
        // Not the error's own text: it quotes the line, which may hold a secret.
        let line = error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
        let place = line.map_or_else(String::new, |line| format!("line {line}: "));
        ConfigError::Syntax { origin: origin.into(), message: format!("{place}{}", error.message()) }
    })
}

/// Lays `layer` over `base`. A setting that the defaults do not know is refused here, with its full name.
fn overlay(base: &mut Table, layer: Table, origin: &str, prefix: &str) -> Result<(), ConfigError> {
    for (key, value) in layer {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match (base.get_mut(&key), value) {
            (Some(Value::Table(inner)), Value::Table(layer)) => overlay(inner, layer, origin, &name)?,
            (Some(slot), value) if slot.type_str() == value.type_str() => *slot = value,
            // `sample = 1` says as much as `sample = 1.0`; larger numbers than a double holds are out of every range.
            (Some(slot @ Value::Float(_)), Value::Integer(value)) => *slot = Value::Float(value as f64),
            (Some(slot), value) => {
                let message = format!("{name} must be of type {}, not {}", slot.type_str(), value.type_str());
                return Err(ConfigError::Syntax { origin: origin.into(), message });
            }
            (None, _) => {
                let message = format!("there is no setting {name}; `seckill config show` lists all");
                return Err(ConfigError::Syntax { origin: origin.into(), message });
            }
        }
    }
    Ok(())
}

/// Sets one setting from text, read as the type that the default has.
fn set(table: &mut Table, origin: &str, setting: &str, text: &str) -> Result<(), ConfigError> {
    let wrong = |message: String| ConfigError::Syntax { origin: origin.into(), message };
    let slot = setting
        .split_once('.')
        .and_then(|(section, key)| table.get_mut(section)?.as_table_mut()?.get_mut(key))
        .ok_or_else(|| wrong(format!("there is no setting {setting}; `seckill config show` lists all")))?;
    let parsed = match slot {
        Value::String(_) => Some(Value::String(text.into())),
        Value::Integer(_) => text.parse().ok().map(Value::Integer),
        Value::Float(_) => text.parse().ok().map(Value::Float),
        Value::Boolean(_) => text.parse().ok().map(Value::Boolean),
        Value::Array(_) => {
            let items = text.split([',', ';']).map(str::trim).filter(|item| !item.is_empty());
            Some(Value::Array(items.map(|item| Value::String(item.into())).collect()))
        }
        _ => None,
    };
    *slot = parsed.ok_or_else(|| wrong(format!("{setting} must be of type {}", slot.type_str())))?;
    Ok(())
}

#[cfg(test)]
mod tests;
