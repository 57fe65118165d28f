// Files that are written, and then put in the places of others: onnx_ops/graph/staging.py.
#pragma once

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "files.hpp"
#include "text.hpp"

#if defined(__unix__) || defined(__APPLE__)
#define ONNX_OPS_POSIX
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#endif

namespace onnx_ops::detail {

/// A new folder next to a file that is being written. Folders that ended processes have left there are removed first; a lock
/// shows which these are, where the system has locks.
class StagingFolder {
 public:
  explicit StagingFolder(const Path &parent) {
    std::error_code found;
    for (const auto &entry : std::filesystem::directory_iterator(parent, found)) {
      const std::string name = entry.path().filename().string();
      const bool own = name.size() == PREFIX.size() + 8 && starts_with(name, PREFIX) && name.find_first_not_of(LETTERS, PREFIX.size()) == std::string::npos;
      if (!own || !entry.is_directory(found) || entry.is_symlink(found)) continue;
      const int lock = locked(entry.path());
      if (lock < 0) continue;
      std::filesystem::remove_all(entry.path(), found);
      release(lock);
    }
    std::random_device random;
    do {  // until no other process has removed it as one that was left
      path_ = parent / (std::string(PREFIX) + hex_text(random(), "%08x"));
      if (!std::filesystem::create_directory(path_, found) && found) throw std::filesystem::filesystem_error("", path_, found);
      lock_ = locked(path_);
    } while (!std::filesystem::exists(path_, found));
  }
  StagingFolder(const StagingFolder &) = delete;
  StagingFolder &operator=(const StagingFolder &) = delete;
  ~StagingFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    release(lock_);
  }

  const Path &path() const { return path_; }

  /// Flushes a file, or the entries of a folder, to disk; on Windows the system does it later.
  static void to_disk(const Path &path) {
#ifdef ONNX_OPS_POSIX
    const int handle = ::open(path.c_str(), O_RDONLY);
    const bool done = handle >= 0 && ::fsync(handle) == 0;
    const int error = errno;
    release(handle);
    if (!done) throw std::filesystem::filesystem_error("", path, std::error_code(error, std::generic_category()));
#else
    static_cast<void>(path);
#endif
  }

 private:
  static constexpr std::string_view PREFIX = ".onnx_ops_", LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_";

  /// A descriptor that holds the lock of a folder; negative if another process has it, or if there are no locks.
  static int locked(const Path &folder) {
#ifdef ONNX_OPS_POSIX
    const int handle = ::open(folder.c_str(), O_RDONLY);
    if (handle >= 0 && ::flock(handle, LOCK_EX | LOCK_NB) == 0) return handle;
    release(handle);
#else
    static_cast<void>(folder);
#endif
    return -1;
  }

  static void release(int handle) {
#ifdef ONNX_OPS_POSIX
    if (handle >= 0) ::close(handle);
#else
    static_cast<void>(handle);
#endif
  }

  Path path_;
  int lock_ = -1;
};

/// Writes files, which take the places of others at the end: of each the old or the new one is complete, and on disk.
class ReplacingFiles {
 public:
  /// paths: in one folder, in the order in which they are replaced.
  explicit ReplacingFiles(std::vector<Path> paths) : paths_(std::move(paths)) {
    for (const Path &path : paths_) {
      std::error_code found;
      const auto status = std::filesystem::symlink_status(path, found);
      if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
        throw StepError("cannot write " + path.string() + ": it is no regular file");
      }
    }
    named([&] { folder_ = std::make_unique<StagingFolder>(parent()); });
  }

  /// Begins the next file.
  void next() {
    named([&] {
      if (stream_.is_open()) stream_.close();
      check();
      errno = 0;
      stream_.open(folder_->path() / paths_.at(begun_++).filename(), std::ios::binary);
      check();
    });
  }

  void write(const void *bytes, std::size_t count) {
    stream_.write(static_cast<const char *>(bytes), static_cast<std::streamsize>(count));
    named([&] { check(); });
  }
  void write(const std::string &bytes) { write(bytes.data(), bytes.size()); }

  /// Puts all files in their places.
  void finish() {
    named([&] {
      stream_.close();
      check();
      for (const Path &path : paths_) {
        const Path staged = folder_->path() / path.filename();
        if (std::filesystem::exists(path)) std::filesystem::permissions(staged, std::filesystem::status(path).permissions());
        StagingFolder::to_disk(staged);
        std::filesystem::rename(staged, path);
      }
      StagingFolder::to_disk(parent());
    });
  }

 private:
  Path parent() const { return paths_.front().has_parent_path() ? paths_.front().parent_path() : Path("."); }

  void check() {
    if (!stream_) throw std::filesystem::filesystem_error("", std::error_code(errno ? errno : EIO, std::generic_category()));
  }

  /// Throws errors of some work as those of the last path, not of a temporary file.
  template <class Work>
  void named(Work work) const {
    try {
      work();
    } catch (const std::filesystem::filesystem_error &error) {
      throw file_error(error.code().value(), paths_.back());
    }
  }

  std::vector<Path> paths_;
  std::unique_ptr<StagingFolder> folder_;
  std::size_t begun_ = 0;
  std::ofstream stream_;
};

}  // namespace onnx_ops::detail
