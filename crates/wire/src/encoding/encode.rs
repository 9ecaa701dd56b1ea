//! Encodes values.

use super::{EncodingError, is_zero};
use rmp::Marker;
use rmp::encode::{
    write_array_len, write_bin, write_bool, write_f32, write_f64, write_map_len, write_nil, write_sint, write_str,
    write_uint,
};
use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

type EncodeResult = Result<(), EncodingError>;

#[derive(Default)]
pub(super) struct Encoder {
    pub(super) out: Vec<u8>,
    /// The last value was a `u8`.
    is_byte: bool,
    /// The last value was a `Some`, which is not left out even if its content is zero.
    is_some: bool,
}

/// A list, map or struct that is being written. Its header comes last, when the number of its
/// entries is known.
pub(super) struct Compound<'a> {
    encoder: &'a mut Encoder,
    /// Where the header belongs.
    start: usize,
    entries: u32,
    /// All elements so far were bytes.
    are_bytes: bool,
}

impl Encoder {
    fn compound(&mut self) -> Compound<'_> {
        let start = self.out.len();
        // The place of the header, which is usually one byte.
        self.out.push(0);
        Compound { encoder: self, start, entries: 0, are_bytes: true }
    }

    /// Fills in a header. A header that is longer than its reserved byte moves the bytes after it.
    fn header<T>(
        &mut self,
        start: usize,
        write: impl FnOnce(&mut Vec<u8>) -> Result<T, EncodingError>,
    ) -> EncodeResult {
        let end = self.out.len();
        write(&mut self.out)?;
        match *self.out.get(end..).unwrap_or_default() {
            [header] => {
                self.out.truncate(end);
                self.out.get_mut(start).into_iter().for_each(|place| *place = header);
            }
            _ => {
                let header = self.out.split_off(end);
                self.out.splice(start..=start, header);
            }
        }
        Ok(())
    }

    /// A variant with content is a map of its name to the content, which the caller writes next.
    fn variant(&mut self, name: &str) -> EncodeResult {
        write_map_len(&mut self.out, 1).map_err(failed)?;
        self.serialize_str(name)
    }
}

impl Compound<'_> {
    fn element(&mut self, value: &(impl Serialize + ?Sized)) -> EncodeResult {
        self.encoder.is_byte = false;
        value.serialize(&mut *self.encoder).map_err(|error| error.in_element(self.entries as usize))?;
        self.are_bytes &= self.encoder.is_byte;
        self.count()
    }

    fn field(&mut self, name: &'static str, value: &(impl Serialize + ?Sized)) -> EncodeResult {
        let before = self.encoder.out.len();
        write_str(&mut self.encoder.out, name).map_err(failed)?;
        let begin = self.encoder.out.len();
        self.encoder.is_some = false;
        value.serialize(&mut *self.encoder).map_err(|error| error.in_field(name))?;
        if !self.encoder.is_some && self.encoder.out.get(begin..).is_some_and(is_zero) {
            self.encoder.out.truncate(before);
            return Ok(());
        }
        self.count()
    }

    fn count(&mut self) -> EncodeResult {
        self.entries = self.entries.checked_add(1).ok_or_else(|| EncodingError::new("too many entries"))?;
        Ok(())
    }

    fn end_list(self) -> EncodeResult {
        let Self { encoder, start, entries, are_bytes } = self;
        encoder.is_byte = false;
        if are_bytes && entries > 0 {
            let bytes = bytes(encoder.out.get(start + 1..).unwrap_or_default());
            encoder.out.truncate(start);
            return write_bin(&mut encoder.out, &bytes).map_err(failed);
        }
        encoder.header(start, |out| write_array_len(out, entries).map_err(failed))
    }

    fn end_map(self) -> EncodeResult {
        let Self { encoder, start, entries, .. } = self;
        encoder.is_byte = false;
        encoder.header(start, |out| write_map_len(out, entries).map_err(failed))
    }
}

/// The values of integers that were encoded from `u8`s.
fn bytes(encoded: &[u8]) -> Vec<u8> {
    let mut encoded = encoded.iter().copied();
    let mut bytes = Vec::with_capacity(encoded.len());
    while let Some(byte) = encoded.next() {
        bytes.push(if byte == Marker::U8.to_u8() { encoded.next().unwrap_or_default() } else { byte });
    }
    bytes
}

/// A vector takes all that is written to it, so this does not happen.
fn failed(error: impl std::fmt::Display) -> EncodingError {
    EncodingError::new(error.to_string())
}

impl<'a> Serializer for &'a mut Encoder {
    type Ok = ();
    type Error = EncodingError;
    type SerializeSeq = Compound<'a>;
    type SerializeTuple = Compound<'a>;
    type SerializeTupleStruct = Compound<'a>;
    type SerializeTupleVariant = Compound<'a>;
    type SerializeMap = Compound<'a>;
    type SerializeStruct = Compound<'a>;
    type SerializeStructVariant = Compound<'a>;

    fn serialize_bool(self, value: bool) -> EncodeResult {
        write_bool(&mut self.out, value).map_err(failed)
    }

    fn serialize_i8(self, value: i8) -> EncodeResult {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> EncodeResult {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> EncodeResult {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> EncodeResult {
        write_sint(&mut self.out, value).map(drop).map_err(failed)
    }

    fn serialize_u8(self, value: u8) -> EncodeResult {
        write_uint(&mut self.out, value.into()).map_err(failed)?;
        self.is_byte = true;
        Ok(())
    }

    fn serialize_u16(self, value: u16) -> EncodeResult {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> EncodeResult {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> EncodeResult {
        write_uint(&mut self.out, value).map(drop).map_err(failed)
    }

    fn serialize_f32(self, value: f32) -> EncodeResult {
        write_f32(&mut self.out, value).map_err(failed)
    }

    fn serialize_f64(self, value: f64) -> EncodeResult {
        write_f64(&mut self.out, value).map_err(failed)
    }

    fn serialize_char(self, value: char) -> EncodeResult {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> EncodeResult {
        write_str(&mut self.out, value).map_err(failed)
    }

    fn serialize_bytes(self, value: &[u8]) -> EncodeResult {
        write_bin(&mut self.out, value).map_err(failed)
    }

    fn serialize_none(self) -> EncodeResult {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> EncodeResult {
        value.serialize(&mut *self)?;
        (self.is_byte, self.is_some) = (false, true);
        Ok(())
    }

    fn serialize_unit(self) -> EncodeResult {
        write_nil(&mut self.out).map_err(failed)
    }

    fn serialize_unit_struct(self, _: &'static str) -> EncodeResult {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> EncodeResult {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> EncodeResult {
        value.serialize(&mut *self)?;
        self.is_byte = false;
        Ok(())
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> EncodeResult {
        self.variant(variant)?;
        value.serialize(&mut *self)?;
        self.is_byte = false;
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Compound<'a>, EncodingError> {
        Ok(self.compound())
    }

    fn serialize_tuple(self, _: usize) -> Result<Compound<'a>, EncodingError> {
        Ok(self.compound())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Compound<'a>, EncodingError> {
        Ok(self.compound())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Compound<'a>, EncodingError> {
        self.variant(variant)?;
        Ok(self.compound())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Compound<'a>, EncodingError> {
        Ok(self.compound())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Compound<'a>, EncodingError> {
        Ok(self.compound())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Compound<'a>, EncodingError> {
        self.variant(variant)?;
        Ok(self.compound())
    }
}

impl SerializeSeq for Compound<'_> {
    type Ok = ();
    type Error = EncodingError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> EncodeResult {
        self.element(value)
    }

    fn end(self) -> EncodeResult {
        self.end_list()
    }
}

impl SerializeTuple for Compound<'_> {
    type Ok = ();
    type Error = EncodingError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> EncodeResult {
        self.element(value)
    }

    fn end(self) -> EncodeResult {
        self.end_list()
    }
}

impl SerializeTupleStruct for Compound<'_> {
    type Ok = ();
    type Error = EncodingError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> EncodeResult {
        self.element(value)
    }

    fn end(self) -> EncodeResult {
        self.end_list()
    }
}

impl SerializeTupleVariant for Compound<'_> {
    type Ok = ();
    type Error = EncodingError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> EncodeResult {
        self.element(value)
    }

    fn end(self) -> EncodeResult {
        self.end_list()
    }
}

impl SerializeMap for Compound<'_> {
    type Ok = ();
    type Error = EncodingError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> EncodeResult {
        key.serialize(&mut *self.encoder)?;
        self.count()
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> EncodeResult {
        value.serialize(&mut *self.encoder)
    }

    fn end(self) -> EncodeResult {
        self.end_map()
    }
}

impl SerializeStruct for Compound<'_> {
    type Ok = ();
    type Error = EncodingError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> EncodeResult {
        self.field(name, value)
    }

    fn end(self) -> EncodeResult {
        self.end_map()
    }
}

impl SerializeStructVariant for Compound<'_> {
    type Ok = ();
    type Error = EncodingError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> EncodeResult {
        self.field(name, value)
    }

    fn end(self) -> EncodeResult {
        self.end_map()
    }
}
