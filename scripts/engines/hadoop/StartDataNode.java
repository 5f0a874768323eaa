import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.io.nativeio.NativeIO;

/** A DataNode that does without Hadoop's native library, which it asks for locked memory otherwise. */
public class StartDataNode {
    public static void main(String[] arguments) {
        NativeIO.POSIX.setCacheManipulator(new NativeIO.POSIX.NoMlockCacheManipulator());
        DataNode.main(arguments);
    }
}
