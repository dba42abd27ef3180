"""Text as token ids: vocabularies, tokenizers, and the base of data sets of sentences.

A sentence becomes ``[CLS] tokens [SEP] [PAD] ...`` of a fixed length, in lower case and without accents, as in the
uncased BERT (Devlin et al. 2019). Splitting into tokens is that of the library ``tokenizers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leakbench.data.base import DATASETS, Dataset, Samples, Split, data_root
from leakbench.data.staged import StagedDataset
from leakbench.errors import ConfigError, MissingData
from leakbench.lazy import np, torch

if TYPE_CHECKING:
    import tokenizers

BERT, BERT_FILE = "google-bert/bert-base-uncased", "vocab.txt"
"""The Hub repository, and its file that holds one piece of a word per line."""
VOCABULARY = "bert_vocabulary"
"""Name of that file for ``leakbench stage``."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


class Tokenizer:
    """Sentences to token ids of one length, and back.

    Args:
        model: splits words into tokens of its vocabulary.
        tokens: length of every row, L.
        source: where the vocabulary is from, for the error message.

    Attributes:
        vocabulary_size: number of entries, V; ids are below it.
        pad, unk, cls, sep: the ids of [PAD], which is 0, [UNK], [CLS] and [SEP].

    Raises:
        ConfigError: the vocabulary has no such entries, or another id for [PAD].
    """

    def __init__(self, model: tokenizers.models.Model, tokens: int, source: str) -> None:
        from tokenizers import Tokenizer as Pipeline
        from tokenizers import decoders, processors

        pipeline = _splitting(Pipeline(model))
        ids: list[int] = []
        for entry in SPECIAL:
            number = pipeline.token_to_id(entry)
            if number is None or (entry == "[PAD]" and number != 0):
                has = "is not an entry" if number is None else f"has id {number}, not 0"
                raise ConfigError(f"{source} is of a tokenizer that does not fit: {entry} {has}")
            ids.append(number)
        self.pad, self.unk, self.cls, self.sep = ids
        pipeline.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])  # what decoding leaves out
        pipeline.encode_special_tokens = True  # in a sentence they are words like any other
        pipeline.post_processor = processors.BertProcessing(("[SEP]", self.sep), ("[CLS]", self.cls))
        pipeline.decoder = decoders.WordPiece(cleanup=True)
        self._uncut = Pipeline.from_str(pipeline.to_str())
        pipeline.enable_truncation(tokens)
        pipeline.enable_padding(length=tokens, pad_id=self.pad, pad_token="[PAD]")
        self._pipeline = pipeline
        self.tokens = tokens
        self.vocabulary_size: int = pipeline.get_vocab_size()

    def encode(self, sentences: Sequence[str]) -> torch.Tensor:
        """Token ids, int64 ``[n, L]``: [CLS], as many tokens as fit, [SEP], then [PAD].

        Raises:
            ValueError: a sentence has no word.
        """
        for number, sentence in enumerate(sentences):
            if not sentence.strip():
                raise ValueError(f"sentence {number} is empty")
        rows = [encoding.ids for encoding in self._pipeline.encode_batch(list(sentences))]
        return torch.tensor(rows, dtype=torch.int64).view(-1, self.tokens)

    def lengths(self, sentences: Sequence[str]) -> list[int]:
        """Numbers of tokens of uncut sentences, [CLS] and [SEP] included."""
        return [len(encoding) for encoding in self._uncut.encode_batch(list(sentences))]

    def decode(self, ids: torch.Tensor, special: bool = False) -> list[str]:
        """Sentences from token ids ``[n, L]``: blanks part tokens, but not pieces of words.

        Args:
            ids: of this vocabulary.
            special: keep [CLS], [SEP] and [PAD] wherever they are; they are left out otherwise.
        """
        sentences: list[str] = self._pipeline.decode_batch(ids.tolist(), skip_special_tokens=not special)
        return sentences


def _splitting(pipeline: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The pipeline with the steps before its vocabulary: BERT's, in lower case."""
    from tokenizers import normalizers, pre_tokenizers

    pipeline.normalizer = normalizers.BertNormalizer(lowercase=True)
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return pipeline


class Vocabulary(BaseModel):
    """Source of a tokenizer's entries."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def files(self, root: Path) -> list[Path]:
        """Files of its own, below a data root."""
        return []

    def tokenizer(self, dataset: TextDataset, root: Path) -> Tokenizer:
        """A tokenizer for a data set.

        Raises:
            MissingData: the vocabulary, or the data set that it is made from, is not staged or broken.
            ConfigError: the vocabulary does not fit.
        """
        raise NotImplementedError


class BertVocabulary(Vocabulary):
    """The 30,522 pieces of words of the uncased BERT (WordPiece)."""

    kind: Literal["bert"] = "bert"

    def files(self, root: Path) -> list[Path]:
        return [root / BERT / BERT_FILE]

    def tokenizer(self, dataset: TextDataset, root: Path) -> Tokenizer:
        from tokenizers import models

        (path,) = self.files(root)
        if not path.is_file():
            raise MissingData(
                f"data set '{dataset.name}': its tokenizer needs {path}, which is not there. Run `leakbench stage "
                f"{VOCABULARY}` where the Hub can be reached, copy {BERT_FILE} of {BERT} there, or set LEAKBENCH_DATA; "
                "a vocabulary of kind 'words' needs no file."
            )
        try:
            lines = path.read_bytes().decode().replace("\r\n", "\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise MissingData(
                f"{path} cannot be read ({error}). Delete it, then run `leakbench stage {VOCABULARY}`."
            ) from error
        entries = lines[:-1] if not lines[-1] else lines
        ids = {entry: number for number, entry in enumerate(entries)}
        if len(ids) != len(entries):
            raise ConfigError(f"{path} is of a tokenizer that does not fit: it names an entry twice")
        # WordPiece needs the unknown word to exist; Tokenizer says so in words.
        return Tokenizer(models.WordPiece(ids, unk_token="[UNK]"), dataset.tokens, str(path))


class Words(Vocabulary):
    """The most frequent words of the data set's own train split, sentences of every length; other words are [UNK].

    (Pieces of words are not made: the trainers of ``tokenizers`` break ties at random.)
    """

    kind: Literal["words"] = "words"
    entries: int = Field(8192, gt=len(SPECIAL), description="most entries, special tokens included")

    def tokenizer(self, dataset: TextDataset, root: Path) -> Tokenizer:
        from tokenizers import Tokenizer as Pipeline
        from tokenizers import models, trainers

        pipeline = _splitting(Pipeline(models.WordLevel(unk_token="[UNK]")))
        trainer = trainers.WordLevelTrainer(vocab_size=self.entries, special_tokens=list(SPECIAL), show_progress=False)
        pipeline.train_from_iterator(dataset.texts("train").sentences, trainer)
        return Tokenizer(pipeline.model, dataset.tokens, f"the train split of '{dataset.name}'")


AnyVocabulary = Annotated[BertVocabulary | Words, Field(discriminator="kind")]


class Texts(NamedTuple):
    """All sentences of a split, and their labels."""

    sentences: tuple[str, ...]
    labels: tuple[int, ...]


def pack(sentences: Sequence[Any]) -> torch.Tensor:
    """Nested lists of sentences as UTF-8 bytes, zero-padded: uint8 ``[..., bytes]``. :func:`unpack` is the inverse.

    Args:
        sentences: a list of sentences, or of lists of equal length, and so on.

    Raises:
        ValueError: lists of one level differ in length, or a sentence holds the character of code zero.
    """
    shape, level = [len(sentences)], list(sentences)
    while level and not isinstance(level[0], str):
        lengths = set(map(len, level))
        if len(lengths) > 1:
            raise ValueError(f"lists of {' and '.join(map(str, sorted(lengths)))} sentences make no tensor")
        shape.append(lengths.pop())
        level = [each for part in level for each in part]
    encoded = [sentence.encode() for sentence in level]
    if any(b"\0" in sentence for sentence in encoded):
        raise ValueError("a sentence holds the character of code zero, which marks the end of others")
    width = max(map(len, encoded), default=0)
    joined = b"".join(sentence.ljust(width, b"\0") for sentence in encoded)
    return torch.tensor(list(joined), dtype=torch.uint8).view(*shape, width)


def unpack(packed: torch.Tensor) -> list[Any]:
    """The nested lists of sentences that :func:`pack` made of ``[..., bytes]``."""
    if packed.ndim > 2:
        return [unpack(part) for part in packed]
    return [bytes(row).rstrip(b"\0").decode() for row in packed.tolist()]


def words(sentence: str) -> int:
    """Number of words: strings between blanks that have a letter or a digit."""
    return sum(any(map(str.isalnum, word)) for word in sentence.split())


def sentence_length(default: int) -> Any:
    """The field ``tokens`` with its default."""
    return Field(default, ge=3, description="length of every sentence in tokens, [CLS] and [SEP] included")


class TextDataset(Dataset):
    """Labelled sentences as token ids, int64 ``[n, L]``: [CLS], tokens, [SEP], then [PAD], whose id is 0.

    Bounds on the number of words (``shortest``, ``longest``) make splits smaller, and so does leaving out what is too
    long; indices count what is left. A subclass sets the class variables, gives ``tokens`` its default with
    :func:`sentence_length`, and implements ``texts``.
    """

    unit = "sentences"

    tokens: int = Field(ge=3, description="length of every sentence in tokens, [CLS] and [SEP] included")
    too_long: Literal["cut", "left_out"] = Field("cut", description="what becomes of sentences of more tokens")
    shortest: int | None = Field(None, ge=1, description="words of the shortest sentences that are used; null: any")
    longest: int | None = Field(None, ge=1, description="words of the longest sentences that are used; null: any")
    vocabulary: AnyVocabulary = Field(BertVocabulary(), description="where the tokenizer's entries come from")

    @model_validator(mode="after")
    def _bounds(self) -> TextDataset:
        if self.shortest is not None and self.longest is not None and self.shortest > self.longest:
            raise ValueError(f"shortest: {self.shortest} words are more than those of the longest ({self.longest})")
        return self

    @classmethod
    def texts(cls, split: Split) -> Texts:
        """All sentences of a split, none of them empty, whatever the bounds.

        Raises:
            MissingData: the data set is not staged, or broken.
        """
        raise NotImplementedError

    def files(self) -> list[Path]:
        return [*super().files(), *(path for path in self.vocabulary.files(data_root()) if path.is_file())]

    @property
    def shape(self) -> tuple[int, ...]:
        """``(L,)``."""
        return (self.tokens,)

    @property
    def tokenizer(self) -> Tokenizer:
        """Made at the first use.

        Raises:
            MissingData: the vocabulary, or the data set that it is made from, is not staged or broken.
            ConfigError: the vocabulary does not fit.
        """
        return _tokenizer(self, data_root())

    def length(self, split: Split) -> int:
        return len(_rows(self, split, data_root()))

    def sentences(self, split: Split, rows: Sequence[int]) -> list[str]:
        """The sentences at ``rows``, as the data set writes them: neither cut nor in lower case.

        Raises:
            MissingData: the data set is not staged, or broken.
            IndexError: a row lies outside the split.
        """
        rows = self._inside(split, rows)
        used, (sentences, _) = _rows(self, split, data_root()), self.texts(split)
        return [sentences[used[row]] for row in rows]

    def read(self, split: Split, rows: list[int]) -> Samples:
        used, (_, labels) = _rows(self, split, data_root()), self.texts(split)
        chosen = torch.tensor([labels[used[row]] for row in rows], dtype=torch.int64)
        return Samples(self.tokenizer.encode(self.sentences(split, rows)), chosen)


@lru_cache(maxsize=16)
def _tokenizer(dataset: TextDataset, root: Path) -> Tokenizer:
    return dataset.vocabulary.tokenizer(dataset, root)


@lru_cache(maxsize=16)
def _rows(dataset: TextDataset, split: Split, root: Path) -> range | tuple[int, ...]:
    """Rows of the sentences of a split inside the bounds.

    Raises:
        ConfigError: none does.
    """
    sentences, _ = dataset.texts(split)
    least, most = dataset.shortest or 0, dataset.longest or max(map(len, sentences))
    used = [row for row, sentence in enumerate(sentences) if least <= words(sentence) <= most]
    if dataset.too_long == "left_out":
        lengths = _tokenizer(dataset, root).lengths([sentences[row] for row in used])
        used = [row for row, length in zip(used, lengths, strict=True) if length <= dataset.tokens]
    if not used:
        raise ConfigError(f"data set '{dataset.name}': no sentence of split '{split}' is as short and long as asked")
    return tuple(used)


class StagedText(StagedDataset, TextDataset):
    """Labelled sentences in parquet files. Subclasses only say where they lie and how they look."""

    text_column: ClassVar[str] = "text"

    @classmethod
    def columns(cls) -> list[str]:
        return [cls.text_column, *cls.label_columns]

    @classmethod
    def texts(cls, split: Split) -> Texts:
        return _staged_texts(cls, split, data_root())

    @classmethod
    def sentence(cls, record: dict[str, Any]) -> str:
        """The sentence of a row.

        Raises:
            ValueError: it is empty or missing.
        """
        sentence = record[cls.text_column]
        if not sentence or not sentence.strip():
            raise ValueError("an empty sentence")
        return str(sentence)


@lru_cache(maxsize=16)
def _staged_texts(dataset: type[StagedText], split: Split, root: Path) -> Texts:
    """All rows of the files under a data root, which is here for the cache."""
    assert root == data_root()
    rows = list(dataset.labelled(split, np.arange(dataset.count(split)), dataset.sentence))
    return Texts(tuple(sentence for sentence, _ in rows), tuple(label for _, label in rows))


@DATASETS.register("cola", version=1)
class Cola(StagedText):
    """CoLA: English sentences that linguists call acceptable (1) or not (0). Warstadt et al. 2019.

    The test split is the validation split: the labels of GLUE's test split are not public.
    """

    hub_id, folder = "nyu-mll/glue", "cola"
    terms = "none named (published examples of linguists)"
    published: ClassVar[dict[Split, int]] = {"train": 8551, "test": 1043}
    splits: ClassVar[dict[Split, str]] = {"train": "train", "test": "validation"}
    text_column = "sentence"
    classes = 2
    tokens: int = sentence_length(48)


@DATASETS.register("rotten_tomatoes", version=1)
class RottenTomatoes(StagedText):
    """Rotten Tomatoes: sentences of film reviews, positive (1) or negative (0). Pang and Lee 2005."""

    hub_id = "cornell-movie-review-data/rotten_tomatoes"
    terms, download = "none named", 800_000
    published: ClassVar[dict[Split, int]] = {"train": 8530, "test": 1066}
    classes = 2
    tokens: int = sentence_length(80)
