//! [`OpenOptions`]: how [`crate::Volume::open`] opens.

use subvol_protocol::request::OpenFlags;

/// How a file is opened; as `std::fs::OpenOptions`. Without any option it opens for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    read: bool,
    flags: OpenFlags,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) follow: bool,
    pub(crate) permissions: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// For reading.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            read: false,
            flags: OpenFlags(0),
            create: false,
            create_new: false,
            follow: true,
            permissions: 0o644,
        }
    }

    const fn set(mut self, flag: OpenFlags, on: bool) -> Self {
        self.flags = if on { self.flags.with(flag) } else { OpenFlags(self.flags.0 & !flag.0) };
        self
    }

    /// Reads are allowed.
    #[must_use]
    pub const fn read(mut self, on: bool) -> Self {
        self.read = on;
        self
    }

    /// Writes are allowed.
    #[must_use]
    pub const fn write(self, on: bool) -> Self {
        self.set(OpenFlags::WRITE, on)
    }

    /// Every write goes to the end; includes `write`.
    #[must_use]
    pub const fn append(self, on: bool) -> Self {
        if on {
            self.set(OpenFlags::APPEND.with(OpenFlags::WRITE), true)
        } else {
            self.set(OpenFlags::APPEND, false)
        }
    }

    /// Cut the file to nothing; includes `write`.
    #[must_use]
    pub const fn truncate(self, on: bool) -> Self {
        if on {
            self.set(OpenFlags::TRUNCATE.with(OpenFlags::WRITE), true)
        } else {
            self.set(OpenFlags::TRUNCATE, false)
        }
    }

    /// Each write is durable with its metadata before it returns.
    #[must_use]
    pub const fn sync(self, on: bool) -> Self {
        self.set(OpenFlags::SYNC, on)
    }

    /// Each write's data is durable before it returns.
    #[must_use]
    pub const fn data_sync(self, on: bool) -> Self {
        self.set(OpenFlags::DATA_SYNC, on)
    }

    /// Fail unless it is a directory.
    #[must_use]
    pub const fn directory(self, on: bool) -> Self {
        self.set(OpenFlags::DIRECTORY, on)
    }

    /// Create the file if it is missing.
    #[must_use]
    pub const fn create(mut self, on: bool) -> Self {
        self.create = on;
        self
    }

    /// Create the file; `Exists` if there is one.
    #[must_use]
    pub const fn create_new(mut self, on: bool) -> Self {
        self.create_new = on;
        self
    }

    /// Follow a symbolic link at the end of the path. On by default.
    #[must_use]
    pub const fn follow(mut self, on: bool) -> Self {
        self.follow = on;
        self
    }

    /// Permission bits of a file that is created. Default 0644.
    #[must_use]
    pub const fn mode(mut self, permissions: u32) -> Self {
        self.permissions = permissions;
        self
    }

    pub(crate) const fn flags(&self) -> OpenFlags {
        if self.read || !self.flags.contains(OpenFlags::WRITE) {
            self.flags.with(OpenFlags::READ)
        } else {
            self.flags
        }
    }
}
