//! The data folder: one process at a time, read at the start, refused when it is damaged.
//!
//! ```text
//! lock             held while a process has the folder; its id in it
//! journal/         what was decided (journal/)
//! orders.sqlite    the orders (store/), made again from the journal where it is missing
//! server.json      where the running process answers operators
//! ```

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::book::Book;
use super::journal::{self, End, JournalError};
use super::store::{self, Opened, StoreError};

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or folder cannot be made, read or written.
    #[error("cannot use the data folder: {path}: {source}", path = .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("the data folder {path} is in use by process {owner}; stop that one, or name another folder (embedded.data)", path = .path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Its process id, as it wrote it.
        owner: String,
    },
    /// The journal is damaged.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The order store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An opened data folder, before anything runs on it.
pub struct Data {
    /// The folder.
    pub folder: PathBuf,
    /// Everything that was decided, with what became of it.
    pub book: Book,
    /// Where the journal ends.
    pub end: End,
    /// The order store.
    pub store: Opened,
    lock: File,
}

/// What remains of the opened folder while it is used.
#[derive(Debug)]
pub struct Held {
    folder: PathBuf,
    _lock: File,
}

impl Drop for Held {
    fn drop(&mut self) {
        // A note that is left behind names a process that is gone; it is only ever a hint.
        let _ = std::fs::remove_file(self.folder.join(SERVER_NOTE));
    }
}

/// Where operators' commands find the running process.
pub const SERVER_NOTE: &str = "server.json";

/// The journal's folder within a data folder.
pub fn journal_folder(folder: &Path) -> PathBuf {
    folder.join("journal")
}

/// The order store's file within a data folder.
pub fn store_path(folder: &Path) -> PathBuf {
    folder.join("orders.sqlite")
}

/// Opens the folder, makes it if it is not there, and reads all that it holds.
///
/// # Errors
/// [`DataError`]; nothing that was promised is ever dropped silently.
pub fn open(folder: &Path, group: &str) -> Result<Data, DataError> {
    let journal = journal_folder(folder);
    std::fs::create_dir_all(&journal).map_err(|source| DataError::Io { path: journal.clone(), source })?;
    let lock = lock(folder)?;
    let mut book = Book::default();
    let end = journal::read(&journal, |payload| super::enter_all(&mut book, payload))?;
    let store = store::open(&store_path(folder), group)?;
    for sale in book.sales() {
        store.sale(&sale.opening, sale.closed)?;
    }
    store.settled(|request_id, outcome| book.settle(&request_id, outcome))?;
    // Orders of sales that the journal has let go of keep their ids.
    book.reserve_order_ids(store.order_id_max()?);
    Ok(Data { folder: folder.to_owned(), book, end, store, lock })
}

fn lock(folder: &Path) -> Result<File, DataError> {
    let path = folder.join("lock");
    let failed = |source| DataError::Io { path: path.clone(), source };
    let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let owner = std::fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
            return Err(DataError::InUse { path: folder.to_owned(), owner });
        }
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    file.set_len(0).map_err(failed)?;
    writeln!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(file)
}

impl Data {
    /// Splits off what is only held.
    pub fn hold(self) -> (Held, Book, End, Opened) {
        (Held { folder: self.folder, _lock: self.lock }, self.book, self.end, self.store)
    }
}
