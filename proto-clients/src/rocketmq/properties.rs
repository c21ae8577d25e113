//! Message properties: `name 0x01 value 0x02`, repeated.

const NAME_END: char = '\u{1}';
const VALUE_END: char = '\u{2}';
/// The broker adds about 80 bytes of its own to its limit of 32,767.
const BYTES_MAX: usize = 32_000;

/// Appends a pair; pairs without a value are left out, as the broker drops them.
pub(crate) fn put(out: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        out.push_str(name);
        out.push(NAME_END);
        out.push_str(value);
        out.push(VALUE_END);
    }
}

/// Whether a text can stand as a name or value.
pub(crate) fn is_clean(text: &str) -> bool {
    !text.contains([NAME_END, VALUE_END])
}

/// Whether the broker takes properties of this length.
pub(crate) fn fits(properties: &str) -> bool {
    properties.len() <= BYTES_MAX
}

/// Reads properties; pairs without a separator are skipped, as every client does.
pub(crate) fn parse(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(VALUE_END).filter_map(|pair| pair.split_once(NAME_END));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
