//! Requests of the kernel, taken apart.
//!
//! Invariant: decoding never trusts a length; bytes that are no request give [`Malformed`], which is answered with EIO. Names are bytes
//! without the terminating zero.

use bytes::Bytes;
use zerocopy::FromBytes;

use super::abi::{self, Opcode};

/// A request without its meaning: who asks, about what.
#[derive(Debug)]
pub struct Incoming {
    /// The number to answer.
    pub unique: u64,
    /// About which inode, in the kernel's numbers.
    pub nodeid: u64,
    /// Effective user of the process.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// The process, for logs and locks.
    pub pid: u32,
    /// Which operation.
    pub opcode: Opcode,
    /// Its arguments.
    pub arguments: Arguments,
    /// The bytes of a write.
    pub payload: Bytes,
}

/// Names and values that come with a request.
pub type Text = Box<[u8]>;

/// Arguments by operation.
#[derive(Debug)]
pub enum Arguments {
    /// None, or none that matter.
    None,
    /// `LOOKUP`, `UNLINK`, `RMDIR`, `REMOVEXATTR`.
    Name(Text),
    /// `FORGET` and `BATCH_FORGET`: (inode, times).
    Forget(Vec<(u64, u64)>),
    /// See the kernel's structure of the same name; so all below.
    SetAttr(abi::SetAttrIn),
    /// Name and target.
    Symlink(Text, Text),
    /// With the name.
    MkNod(abi::MkNodIn, Text),
    /// With the name.
    MkDir(abi::MkDirIn, Text),
    /// Old name, new name.
    Rename(abi::Rename2In, Text, Text),
    /// The inode and the new name.
    Link(u64, Text),
    /// `OPEN`, `OPENDIR`.
    Open(abi::OpenIn),
    /// `CREATE`, `TMPFILE`, with the name.
    Create(abi::CreateIn, Text),
    /// `READ`, `READDIR`, `READDIRPLUS`.
    Read(abi::ReadIn),
    /// The payload is apart.
    Write(abi::WriteIn),
    /// `RELEASE`, `RELEASEDIR`.
    Release(abi::ReleaseIn),
    /// Closing.
    Flush(abi::FlushIn),
    /// `FSYNC`, `FSYNCDIR`.
    Fsync(abi::FsyncIn),
    /// Flags, name and value.
    SetXattr(u32, Text, Text),
    /// Room for the value, name.
    GetXattr(u32, Text),
    /// Room for the names.
    ListXattr(u32),
    /// `GETLK`, `SETLK`, `SETLKW`.
    Lock(abi::LkIn),
    /// The number of the request to be ended.
    Interrupt(u64),
    /// `FALLOCATE`.
    Fallocate(abi::FallocateIn),
    /// `LSEEK`.
    Lseek(abi::LseekIn),
    /// `INIT`.
    Init(abi::InitIn),
}

/// Bytes that are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// To be answered, if not 0.
    pub unique: u64,
    /// An operation this front end does not know (ENOSYS) rather than a broken one (EIO).
    pub unknown: bool,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    fn text(&mut self) -> Option<Text> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.get(1..)?;
        Some(text.into())
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

impl Incoming {
    /// Takes a request apart. Also tells where a write's payload lies, which the caller knows how to keep.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, Option<(usize, usize)>), Malformed> {
        let mut reader = Reader(bytes);
        let header: abi::InHeader = reader.take().ok_or(Malformed { unique: 0, unknown: false })?;
        let unique = header.unique;
        let broken = Malformed { unique, unknown: false };
        let opcode = Opcode::from_number(header.opcode).ok_or(Malformed { unique, unknown: true })?;
        if header.len as usize != bytes.len() {
            return Err(broken);
        }
        let mut payload = None;
        let arguments = arguments(opcode, &mut reader, bytes.len(), &mut payload).ok_or(broken)?;
        let incoming = Self {
            unique,
            nodeid: header.nodeid,
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
            opcode,
            arguments,
            payload: Bytes::new(),
        };
        Ok((incoming, payload))
    }
}

fn arguments(
    opcode: Opcode,
    reader: &mut Reader<'_>,
    total: usize,
    payload: &mut Option<(usize, usize)>,
) -> Option<Arguments> {
    Some(match opcode {
        Opcode::Lookup | Opcode::Unlink | Opcode::RmDir | Opcode::RemoveXattr => {
            Arguments::Name(reader.text()?)
        }
        Opcode::Forget => {
            let forget: abi::ForgetIn = reader.take()?;
            // The inode is that of the header.
            Arguments::Forget(vec![(0, forget.nlookup)])
        }
        Opcode::BatchForget => {
            let batch: abi::BatchForgetIn = reader.take()?;
            let mut list = Vec::new();
            for _ in 0..batch.count {
                let one: abi::ForgetOne = reader.take()?;
                list.push((one.nodeid, one.nlookup));
            }
            Arguments::Forget(list)
        }
        Opcode::SetAttr => Arguments::SetAttr(reader.take()?),
        Opcode::Symlink => Arguments::Symlink(reader.text()?, reader.text()?),
        Opcode::MkNod => Arguments::MkNod(reader.take()?, reader.text()?),
        Opcode::MkDir => Arguments::MkDir(reader.take()?, reader.text()?),
        Opcode::Rename => {
            let rename: abi::RenameIn = reader.take()?;
            let rename = abi::Rename2In { newdir: rename.newdir, flags: 0, padding: 0 };
            Arguments::Rename(rename, reader.text()?, reader.text()?)
        }
        Opcode::Rename2 => Arguments::Rename(reader.take()?, reader.text()?, reader.text()?),
        Opcode::Link => {
            let link: abi::LinkIn = reader.take()?;
            Arguments::Link(link.oldnodeid, reader.text()?)
        }
        Opcode::Open | Opcode::OpenDir => Arguments::Open(reader.take()?),
        Opcode::Create | Opcode::TmpFile => Arguments::Create(reader.take()?, reader.text()?),
        Opcode::Read | Opcode::ReadDir | Opcode::ReadDirPlus => Arguments::Read(reader.take()?),
        Opcode::Write => {
            let write: abi::WriteIn = reader.take()?;
            let from = total - reader.0.len();
            reader.bytes(write.size as usize)?;
            *payload = Some((from, from + write.size as usize));
            Arguments::Write(write)
        }
        Opcode::Release | Opcode::ReleaseDir => Arguments::Release(reader.take()?),
        Opcode::Flush => Arguments::Flush(reader.take()?),
        Opcode::Fsync | Opcode::FsyncDir => Arguments::Fsync(reader.take()?),
        Opcode::SetXattr => {
            // In the long form, which INIT asked for.
            let set: abi::SetXattrIn = reader.take()?;
            let name = reader.text()?;
            Arguments::SetXattr(set.flags, name, reader.bytes(set.size as usize)?.into())
        }
        Opcode::GetXattr => {
            let get: abi::GetXattrIn = reader.take()?;
            Arguments::GetXattr(get.size, reader.text()?)
        }
        Opcode::ListXattr => {
            let list: abi::GetXattrIn = reader.take()?;
            Arguments::ListXattr(list.size)
        }
        Opcode::GetLk | Opcode::SetLk | Opcode::SetLkW => Arguments::Lock(reader.take()?),
        Opcode::Interrupt => {
            let interrupt: abi::InterruptIn = reader.take()?;
            Arguments::Interrupt(interrupt.unique)
        }
        Opcode::Fallocate => Arguments::Fallocate(reader.take()?),
        Opcode::Lseek => Arguments::Lseek(reader.take()?),
        Opcode::Init => Arguments::Init(reader.take()?),
        _ => Arguments::None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn request(opcode: Opcode, body: &[u8]) -> Vec<u8> {
        let header = abi::InHeader {
            len: (size_of::<abi::InHeader>() + body.len()) as u32,
            opcode: opcode as u32,
            unique: 7,
            nodeid: 1,
            ..abi::InHeader::default()
        };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn a_lookup_has_its_name() {
        let bytes = request(Opcode::Lookup, b"name\0");
        let (incoming, payload) = Incoming::decode(&bytes).expect("whole");
        assert!(matches!(incoming.arguments, Arguments::Name(name) if &*name == b"name"));
        assert_eq!((incoming.unique, incoming.nodeid, payload), (7, 1, None));
    }

    #[test]
    fn a_write_tells_where_its_bytes_are() {
        let write = abi::WriteIn { size: 3, offset: 9, ..abi::WriteIn::default() };
        let bytes = request(Opcode::Write, &[write.as_bytes(), b"abc"].concat());
        let (_, payload) = Incoming::decode(&bytes).expect("whole");
        let (from, to) = payload.expect("a payload");
        assert_eq!(&bytes[from..to], b"abc");
    }

    #[test]
    fn cut_and_lying_requests_are_refused() {
        let whole = request(Opcode::Rename2, &[abi::Rename2In::default().as_bytes(), b"a\0b\0"].concat());
        for length in 0..whole.len() {
            assert!(Incoming::decode(&whole[..length]).is_err(), "{length} bytes");
        }
        let mut cut_name = request(Opcode::Lookup, b"name");
        assert!(Incoming::decode(&cut_name).is_err(), "a name without an end");
        cut_name[4] = 200;
        assert_eq!(Incoming::decode(&cut_name).expect_err("unknown"), Malformed { unique: 7, unknown: true });
        let many = abi::BatchForgetIn { count: u32::MAX, dummy: 0 };
        assert!(Incoming::decode(&request(Opcode::BatchForget, many.as_bytes())).is_err());
        let write = abi::WriteIn { size: 4, ..abi::WriteIn::default() };
        assert!(Incoming::decode(&request(Opcode::Write, &[write.as_bytes(), b"abc"].concat())).is_err());
    }
}
