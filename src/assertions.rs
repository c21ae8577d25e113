//! What must hold in the order store when nothing is under way: `sql/assertions`, each a query that finds nothing.
//!
//! The same texts are run on PostgreSQL and on SQLite, and share no code with what writes the rows.

macro_rules! assertions {
    ($($name:literal),* $(,)?) => {
        /// Name and query of each.
        pub const ASSERTIONS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../sql/assertions/", $name, ".sql")))),*
        ];
    };
}

assertions![
    "completed_has_order",
    "inbox_settled",
    "no_order_released",
    "no_oversell",
    "one_user_one_order",
    "order_has_inbox",
    "rejected_has_reason",
    "rejected_is_released",
    "sold_equals_orders",
];

#[cfg(test)]
mod tests {
    #[test]
    fn every_file_is_listed() {
        let mut files: Vec<String> = std::fs::read_dir("sql/assertions")
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        files.sort();
        let listed: Vec<&str> = super::ASSERTIONS.iter().map(|(name, _)| *name).collect();
        assert_eq!(files, listed);
    }
}
