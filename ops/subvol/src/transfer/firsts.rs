//! The first name of each file with several, and who waits for it.

use std::cell::RefCell;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tokio::sync::watch;

use super::local::LocalDirectory;

/// To be set to true once the first name is there; dropped if it never will be.
pub type Done = watch::Sender<bool>;

/// Where the first name is.
#[derive(Clone)]
pub struct First {
    pub directory: Arc<LocalDirectory>,
    pub name: Vec<u8>,
    done: watch::Receiver<bool>,
}

impl First {
    /// Whether it was made, once that is known.
    pub async fn is_made(&mut self) -> bool {
        self.done.wait_for(|done| *done).await.is_ok()
    }
}

/// By inode of the volume.
#[derive(Default)]
pub struct Firsts(RefCell<FxHashMap<u64, First>>);

impl Firsts {
    /// Either this name is the first, to be confirmed when it is made, or the one that is.
    ///
    /// # Errors
    /// The first name.
    pub fn claim(&self, inode: u64, directory: &Arc<LocalDirectory>, name: &[u8]) -> Result<Done, First> {
        let mut firsts = self.0.borrow_mut();
        if let Some(first) = firsts.get(&inode) {
            return Err(first.clone());
        }
        let (sender, done) = watch::channel(false);
        firsts.insert(inode, First { directory: Arc::clone(directory), name: name.to_vec(), done });
        Ok(sender)
    }
}
